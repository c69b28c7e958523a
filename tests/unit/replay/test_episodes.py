"""Recorded episodes fill a replay: every form of the data gives the same rows, and bad data leaves nothing behind."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from refused import Refused, check_refused

import marlcore as mc
from marlcore.memory import survey_segments

LENGTHS = [3, 1, 5, 2, 4]


def recorded(names=("place",), terminated=(True, False, False, True, False)):
    """Yields episodes with observations [T + 1, ...], whose numbers grow by 1 from row to row."""
    number = 0.0
    for length, end in zip(LENGTHS, terminated, strict=True):
        rows = (number + np.arange(length + 1, dtype=np.float32))[:, None]
        obs = {name: rows + np.array([0, 100 * i], np.float32) for i, name in enumerate(names)}
        number += length + 1
        yield {
            "obs": obs if len(names) > 1 else obs["place"],
            "action": np.arange(length) % 3,
            "reward": np.linspace(0, 1, length),
            "terminated": end,
            "truncated": not end,
        }


def flat(episodes, **renamed):
    """Joins all episodes to one array a field; `final_obs` has one row for each episode that does not terminate."""
    episodes = list(episodes)
    ends = [np.arange(len(episode["reward"])) == len(episode["reward"]) - 1 for episode in episodes]
    columns = {name: [episode[name] for episode in episodes] for name in ("action", "reward")}
    for name in ("terminated", "truncated"):
        columns[name] = [end & episode[name] for end, episode in zip(ends, episodes, strict=True)]
    columns["obs"] = [episode["obs"][:-1] for episode in episodes]
    columns["final_obs"] = [episode["obs"][-1:] for episode in episodes if not episode["terminated"]]
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    return {renamed.get(name, name): array for name, array in arrays.items()}


def as_minari(episodes):
    """Imitates a Minari dataset: episodes are objects, and the action space begins at 7."""
    of_minari = {"obs": "observations", "action": "actions", "reward": "rewards"}
    objects = []
    for episode in episodes:
        end = np.arange(len(episode["reward"])) == len(episode["reward"]) - 1
        fields = {name: episode[ours] for ours, name in of_minari.items()}
        ends = {"terminations": end & episode["terminated"], "truncations": end & episode["truncated"]}
        fields["actions"] = fields["actions"] + 7
        objects.append(SimpleNamespace(id=len(objects), infos={}, **fields, **ends))
    return SimpleNamespace(iterate_episodes=lambda: iter(objects), action_space=SimpleNamespace(n=3, start=7))


def in_other_forms(tmp_path):
    np.savez(tmp_path / "ours.npz", **flat(recorded()))
    d4rl = {"obs": "observations", "action": "actions", "reward": "rewards", "terminated": "terminals"}
    data = flat(recorded(), **d4rl, truncated="timeouts")
    del data["final_obs"]
    following = np.concatenate([episode["obs"][1:] for episode in recorded()])
    np.savez(tmp_path / "d4rl.npz", **data, next_observations=following)
    del data["timeouts"]
    np.savez(tmp_path / "seams.npz", **data, next_observations=following)
    yield recorded()
    yield [{**episode, "obs": episode["obs"][:-1], "final_obs": episode["obs"][-1]} for episode in recorded()]
    yield flat(recorded())
    yield str(tmp_path / "ours.npz")
    yield tmp_path / "d4rl.npz"
    yield tmp_path / "seams.npz"
    yield as_minari(recorded())


def rows_of(replay):
    """Returns each transition that can be drawn, by its ticket."""
    batch = replay.sampler(400, seed=0, min_size=1).sample()
    fields = (batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.terminated, batch.truncated)
    return {int(index): tuple(np.asarray(field[i]).tolist() for field in fields) for i, index in enumerate(batch.index)}


def expected_rows():
    rows, ticket = {}, 0
    for episode in recorded():
        last = len(episode["reward"]) - 1
        for step in range(last + 1):
            ended, terminated = step == last, step == last and episode["terminated"]
            after = None if terminated else episode["obs"][step + 1].tolist()
            reward, discount = (float(np.float32(x)) for x in (episode["reward"][step], 0.99 * (not terminated)))
            ends = (terminated, ended and not terminated)
            rows[ticket] = (episode["obs"][step].tolist(), int(episode["action"][step]), reward, after, discount, *ends)
            ticket += 1
        ticket += not episode["terminated"]
    return rows


def test_every_form_gives_the_rows_of_the_episodes(tmp_path):
    for source in in_other_forms(tmp_path):
        with mc.ReplayBuffer.from_episodes(source) as replay:
            assert len(replay) == sum(LENGTHS) and replay.capacity == sum(LENGTHS) + 3
            rows = rows_of(replay)
            for ticket, row in expected_rows().items():
                known = [i for i, value in enumerate(row) if value is not None]  # not what follows a terminal action
                assert [rows[ticket][i] for i in known] == [row[i] for i in known]
            assert rows.keys() == expected_rows().keys()


@pytest.mark.filterwarnings("ignore")  # of Minari, about the data set's author and environment
def test_a_data_set_of_minari_gives_the_rows_of_its_episodes(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="needs minari: pip install 'minari[hdf5]'")
    from gymnasium.spaces import Box, Discrete, Tuple
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    episodes = as_minari(recorded()).iterate_episodes()
    buffers = [EpisodeBuffer(ep.id, infos={}, **{name: getattr(ep, name) for name in names}) for ep in episodes]
    spaces = {"observation_space": Box(-100, 100, (2,), np.float32), "action_space": Discrete(3, start=7)}
    dataset = minari.create_dataset_from_buffers("walk/demo-v0", buffers, **spaces, data_format="hdf5")
    with mc.ReplayBuffer.from_episodes(dataset) as replay:
        rows = rows_of(replay)
    assert {ticket: row[:3] for ticket, row in rows.items()} == {at: row[:3] for at, row in expected_rows().items()}
    pairs = [replace(buffer, observations=(buffer.observations, -buffer.observations)) for buffer in buffers]
    spaces["observation_space"] = Tuple([spaces["observation_space"]] * 2)
    dataset = minari.create_dataset_from_buffers("walk/tuple-v0", pairs, **spaces, data_format="hdf5")
    with mc.ReplayBuffer.from_episodes(dataset) as replay:  # two parts: as many as some episodes have steps
        batch = replay.sampler(50, seed=0).sample()
    assert batch.obs.keys() == mc.Spaces(**{n.removesuffix("_space"): s for n, s in spaces.items()}).obs.keys()
    assert (batch.obs["part_0"] == -batch.obs["part_1"]).all() and batch.obs["part_0"].shape == (50, 2)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_spec_says_what_a_tuple_holds(steps):
    """A tuple is either two parts or the steps of one array; without a spec it is refused."""
    rows = np.arange(2.0 * steps + 2, dtype=np.float32).reshape(-1, 2)
    rest = {"action": np.zeros(steps, np.int64), "reward": np.zeros(steps), "terminated": True}
    two = {"part_0": mc.Field((2,)), "part_1": mc.Field((2,)), "of__0": mc.Field((2,)), "of__1": mc.Field((2,))}
    forms = [
        ({"part_0": two["part_0"], "part_1": two["part_1"]}, (rows, rows + 9), "part_1"),
        ({"of__0": two["of__0"], "of__1": two["of__1"]}, {"of": (rows, rows + 9)}, "of__1"),
        ({"of": two["of__0"]}, {"of": tuple(rows + 9)}, "of"),
        (mc.Field((2,)), tuple(rows + 9), None),
    ]
    for fields, obs, name in forms:
        spec = mc.TransitionSpec(fields, mc.Field((), "int64"))
        with mc.ReplayBuffer.from_episodes([{**rest, "obs": obs}], spec) as replay:
            batch = replay.sampler(9, seed=0, min_size=1).sample()
            held = batch.obs if name is None else batch.obs[name]
            np.testing.assert_array_equal(held, rows[batch.index] + 9)
    says = "obs: expected a list or an array of steps, or a spec that names a tuple's parts, got a tuple of 2"
    check_refused(filled([{**rest, "obs": (rows, rows)}]), ValueError, says)


def test_parts_are_named_and_left_out_as_those_of_spaces():
    gym = pytest.importorskip("gymnasium").spaces
    box = gym.Box(-1, 1, (2,))
    space = gym.Dict([("a.b", box), (3, gym.Tuple([box, box])), ("none", gym.Box(0, 1, (0,))), ("said", gym.Text(2))])
    rows = np.zeros((3, 2), np.float32)
    seen = {"a.b": rows, 3: {0: rows, 1: rows}, "none": np.zeros((3, 0)), "said": np.array(["go"] * 3)}
    episode = {"obs": seen, "action": np.zeros(2, np.int64), "reward": np.zeros(2), "terminated": True}
    with mc.ReplayBuffer.from_episodes([episode]) as replay:
        assert replay.spec.obs == mc.Spaces(space, gym.Discrete(2)).obs


def test_dict_observations_come_from_arrays_and_files(tmp_path):
    episodes = list(recorded(("place", "speed"), [True] * 5))
    parts = {
        f"obs.{name}": np.concatenate([episode["obs"][name][:-1] for episode in episodes])
        for name in ("place", "speed")
    }
    rest = flat([{**episode, "obs": episode["obs"]["place"]} for episode in recorded(("place", "speed"))])
    ends = {"terminated": rest["terminated"] | rest["truncated"]}
    np.savez(tmp_path / "parts.npz", **parts, **ends, action=rest["action"], reward=rest["reward"])
    nested = [{**episode, "obs": {"body": episode["obs"]}} for episode in episodes]
    for source, prefix in ((episodes, ""), (tmp_path / "parts.npz", ""), (nested, "body__")):
        with mc.ReplayBuffer.from_episodes(source) as replay:
            batch = replay.sampler(50, seed=0).sample()
            assert batch.obs.keys() == {f"{prefix}place", f"{prefix}speed"}
            assert (batch.obs[f"{prefix}speed"] - batch.obs[f"{prefix}place"] == [0, 100]).all()


def test_a_given_spec_converts_rows_and_takes_its_extras():
    extras = {"cost": mc.Field(), "state": mc.Field((2,), every=4)}
    spec = mc.TransitionSpec(mc.Field((2,), "float64"), mc.Field((), "int32"), extras)
    episodes = [{**episode, "cost": np.full(len(episode["reward"]), 0.5), "info": "ignored"} for episode in recorded()]
    with mc.ReplayBuffer.from_episodes(episodes, spec) as replay:
        assert replay.spec == spec and replay.capacity % 4 == 0
        batch = replay.sampler(16, sequence=mc.Sequence(length=4), min_size=1).sample()
        assert not batch.extras["state"].any() and (batch.extras["cost"][batch.valid[..., -1]] == 0.5).all()


def test_with_a_capacity_episodes_are_written_as_they_are_read(tmp_path):
    held = []

    def watched():
        for episode in recorded():
            held.append(len(survey_segments(tmp_path)))
            yield episode

    path = tmp_path / "replay.marlcore"
    with mc.ReplayBuffer.from_episodes(watched(), capacity=64, path=path) as replay:
        assert len(replay) == sum(LENGTHS) and replay.capacity == 64 and path.exists()
        with replay.writer() as writer:  # for later rows
            writer.add(np.zeros(2, np.float32), 0, 0.0)
    assert len(held) == 5


class ActionSpace:
    """Imitates Discrete(2, start=1)."""

    n, start = 2, 1

    def __repr__(self):
        return "Discrete(2, start=1)"


def with_one_bad(**changes):
    """Returns three good episodes and one with changed fields; a change to None removes the field."""
    episodes = list(recorded())
    return [*episodes[:3], {name: value for name, value in {**episodes[3], **changes}.items() if value is not None}]


def filled(source, spec=None, **options):
    return lambda: mc.ReplayBuffer.from_episodes(source, spec, **options)


NAN = np.full((3, 2), complex(0, np.nan))
NANS, ROW = np.full((3, 2), np.nan, np.float32), mc.TransitionSpec(mc.Field((2,)), mc.Field((), "int64"))
MASKED = {"obs": {"place": np.zeros((2, 1)), "action_mask": np.array([[True, False], [True, True]])}}
MASKED |= {"action": np.array([0]), "reward": np.zeros(1), "terminated": True}
UNENDED = {"obs": np.zeros((2, 2), np.float32), "terminated": False}
BAD = [  # fields of an episode of two transitions
    ({"obs": None}, ValueError, "obs: expected an array, got none beside ['action', 'reward', "),
    ({"reward": None}, ValueError, "reward: expected an array, got none beside ['action', 'obs', "),
    ({"action": []}, ValueError, "action: expected an array [T, ...] with T of at least 1, got []"),
    ({"reward": np.zeros(5)}, ValueError, "reward: expected float32 (2,), got shape (5,)"),
    ({"obs": np.zeros((9, 2))}, ValueError, "obs: expected 2 rows, as action has, or one more, got {(9,)}"),
    ({"obs": np.zeros(()), "final_obs": 0.0}, ValueError, "obs: expected 2 rows, as action has, or one more, got {()}"),
    ({"obs": np.zeros((3, 7))}, ValueError, "obs: expected float32 (2, 2), got shape (2, 7)"),
    ({"obs": {"x": np.zeros((3, 2))}}, TypeError, "obs: expected float32 (2,), got {'x': "),
    ({"obs": [{"a": 1.0}] * 3}, ValueError, "obs: expected an array [T, ...] of numbers, or a dict of them, got [{"),
    ({"obs": [([1.0], 2.0)] * 3}, ValueError, "obs: expected an array [T, ...] of numbers, or a dict of them, got [("),
    ({"action": [(1, 2), 3]}, ValueError, "action: expected an array [T, ...] of numbers, or a dict of them, got [("),
    ({"obs": NANS}, ValueError, "obs: expected finite numbers, got nan"),
    ({"action": NAN[:2, 0]}, TypeError, "action: expected int64 (2,), got dtype complex128"),
    ({"reward": NANS[:2, 0]}, ValueError, "reward: expected finite numbers, got nan"),
    ({"action": np.array([0.5, 1.0])}, TypeError, "action: expected int64 (2,), got dtype float64"),
    ({"terminated": np.array([True, False])}, ValueError, "terminated: expected True for the last transition alone"),
    ({"terminated": None, "truncated": None, "done": [0, 1]}, ValueError, "expected 'terminated' or 'truncated', got"),
    (
        {"obs": np.zeros((2, 2)), "next_obs": np.eye(2)},
        ValueError,
        "next_obs: expected row 0 to equal row 1 of obs, got another observation",
    ),
    ({"truncated": "yes"}, ValueError, "truncated: expected bool (2,), got shape ()"),
    (UNENDED, ValueError, "final_obs: expected the observation after an episode that does not terminate, got none"),
    ({"rewards": np.zeros(2)}, ValueError, "expected one array for each field, got ['action', 'obs', 'reward', 'rew"),
]
WITH_COST = mc.TransitionSpec(ROW.obs, ROW.action, {"cost": mc.Field()})
COMPLEX = mc.TransitionSpec(mc.Field((2,), "complex128"), mc.Field((), "complex128"))
WITH_NANS = [{**episode, "cost": np.full(len(episode["action"]), np.nan)} for episode in recorded()]
REFUSED: list[Refused] = [
    *((filled(with_one_bad(**changes)), error, f"episode 3: {says}") for changes, error, says in BAD),
    (filled(recorded(), action_space=ActionSpace()), ValueError,
        "episode 0: action: expected values within Discrete(2, start=1), got 0 at step 0"),
    (filled([MASKED, {**MASKED, "action": np.array([1])}]), ValueError,
        "episode 1: action: expected an action that action_mask allows, got 1 at step 0"),
    (filled(recorded(), WITH_COST), ValueError, "episode 0: cost: expected float32 () for each transition"),
    (filled(WITH_NANS, WITH_COST), ValueError, "episode 0: cost: expected finite numbers, got nan in"),
    *((filled(with_one_bad(**{name: values}), COMPLEX), ValueError,
       f"episode 3: {name}: expected finite numbers, got nanj in")
      for name, values in {"obs": NAN, "action": NAN[:2, 0]}.items()),
    (filled([1]), TypeError, "episode 0: expected a dict of arrays or an episode of Minari, got 1"),
    (filled([]), ValueError, "episodes: expected at least one, got none in []"),
    (filled(3), TypeError, "episodes: expected the path of a .npz file, a Minari dataset or an iterable"),
    (filled(recorded(), capacity=6), ValueError, "capacity: expected at least 11 rows for episodes 0 to 2, got 6"),
    (filled(recorded(), mc.TransitionSpec(ROW.obs, ROW.action, next_obs=True)), ValueError,
        "spec: expected a spec without next_obs, since the rows of an episode follow one another"),
    (filled(recorded(), mc.TransitionSpec(ROW.obs, {"x": ROW.action})), ValueError,
        "spec: expected one Field as action, got {'x': Field("),
    (filled(recorded(), mc.TransitionSpec(ROW.obs, ROW.action, reward=mc.Field((2,)))), ValueError,
        "spec: expected a scalar reward, got float32 (2,)"),
    (filled({"obs": np.zeros(3)}), ValueError, "reward: expected an array, got none beside ['obs']"),
    (filled({**flat(recorded()), "action": np.zeros(3)}), ValueError,
        "action: expected 15 rows, as reward has, got shape (3,)"),
    (filled({**flat(recorded()), "final_obs": np.zeros((2, 2))}), ValueError,
        "final_obs: expected 3 rows, one for each episode that does not terminate, got shape (2, 2)"),
]  # fmt: skip


def test_bad_episodes_are_refused_in_one_line_and_leave_nothing(subtests):
    before = survey_segments()
    for row in REFUSED:
        with subtests.test(row[-1]):
            check_refused(*row)
            assert survey_segments() == before


def test_a_late_bad_episode_leaves_no_file(tmp_path):
    path = tmp_path / "replay.marlcore"
    check_refused(filled(with_one_bad(obs=NANS), capacity=64, path=path), ValueError, "episode 3: obs: expected finite")
    assert not path.exists()


@pytest.mark.parametrize("kinds", [("float32", "float64"), ("float64", "float32")])
def test_rounded_observations_are_no_seams(kinds: tuple[str, str]) -> None:
    seen = np.random.default_rng(0).standard_normal((11, 3))
    obs, following = (array.astype(kind) for array, kind in zip((seen[:-1], seen[1:]), kinds, strict=True))
    rows = {"obs": obs, "next_obs": following, "action": np.zeros(10, np.int64), "reward": np.ones(10)}
    with mc.ReplayBuffer.from_episodes({**rows, "terminated": np.arange(10) == 9}) as replay:
        assert {*replay.sampler(64, n_step=3, gamma=1.0).sample().reward.tolist()} == {1.0, 2.0, 3.0}


@pytest.mark.parametrize("kinds", [("float64", "int64"), ("float32", "uint8"), ("uint8", "bool")])
def test_other_kinds_of_numbers_are_compared_as_they_are(kinds: tuple[str, str]) -> None:
    obs, following = np.array([[0.5], [2.5]]).astype(kinds[0]), np.array([[1], [3]]).astype(kinds[1])
    rows = {"obs": obs + obs, "next_obs": following, "action": np.zeros(2, np.int64), "reward": np.ones(2)}
    with pytest.raises(ValueError, match="next_obs: expected row 0 to equal row 1 of obs"):
        mc.ReplayBuffer.from_episodes([{**rows, "terminated": True}])
