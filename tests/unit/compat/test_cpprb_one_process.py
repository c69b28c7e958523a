"""marlcore.compat.cpprb's buffers of one process, against cpprb, plain rings and returns computed step by step."""

import io
import logging
import pickle
import zipfile
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from cpprb_alike import NEXT, WAYS, assert_equal, episode, fields_of, pieces, sizes, summed
from refused import Refused, check_refused, refusals, stale_in_a_fork
from tiers import long_but
from victims import at_instruction

from marlcore.compat.cpprb import (
    MPPrioritizedReplayBuffer,
    MPReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    create_before_add_func,
    create_buffer,
    create_env_dict,
    train,
)
from marlcore.errors import SegmentCorrupt

NO_CPPRB = "cpprb has wheels for Python 3.10 to 3.12 on x86-64 only"
BOTH = pytest.mark.parametrize("cls", [ReplayBuffer, PrioritizedReplayBuffer])


@pytest.mark.parametrize("way", ["next_of", "stack", "both"])
@pytest.mark.parametrize("seed", long_but([0], range(4)))
def test_compressed_rows_are_those_of_a_plain_ring(way, seed) -> None:
    """Also where a program never says that an episode ended, and where rows do not follow one another at all."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(3, 25))
    plain, compressed = ReplayBuffer(size, NEXT), ReplayBuffer(size, fields_of(way), **WAYS[way])
    for turn in range(120):
        length = int(rng.integers(1, 9))
        steps = episode(rng, length)
        if turn % 7 == 3:
            steps["obs"] = rng.random((length, 2, 3))
        if turn % 11 == 5:
            steps["next_obs"] = np.full((length, 2, 3), np.nan)
        for piece in pieces(rng, steps, 5):
            assert compressed.add(**piece) == plain.add(**piece)
        held = plain.get_all_transitions()
        assert_equal(compressed.get_all_transitions(), {name: held[name] for name in compressed._fields})
        np.random.seed(turn)
        drawn = plain.sample(7)
        np.random.seed(turn)
        assert_equal(compressed.sample(7), {name: drawn[name] for name in compressed._fields})
        assert all(len(kept) <= size for kept in compressed._ring._overrides.values())
        if turn % 3:
            compressed.on_episode_end()
        if turn % 40 == 39:
            compressed.clear()
            plain.clear()
            assert not any(map(len, compressed._ring._overrides.values()))


def test_frames_lie_in_memory_once() -> None:
    def nbytes(**options) -> int:
        fields = {"obs": {"shape": (32, 32, 4), "dtype": "uint8"}}
        next_obs = {} if "next_of" in options else {"next_obs": fields["obs"]}
        buffer = ReplayBuffer(200, {**fields, **next_obs}, **options)
        frames = np.random.default_rng(0).integers(0, 255, (32, 32, 605), np.uint8)
        for t in range(600):
            buffer.add(obs=frames[..., t : t + 4], next_obs=frames[..., t + 1 : t + 5])
        assert all(len(kept) <= 1 for kept in buffer._ring._overrides.values())  # the newest row has none after it
        size = buffer._ring.lane.nbytes
        buffer.close()
        return size

    assert 7 < nbytes() / nbytes(next_of="obs", stack_compress="obs") < 8
    assert 1.9 < nbytes() / nbytes(next_of="obs") < 2


def test_rows_keep_their_own_values_after_an_interrupted_add() -> None:
    """Each row is an episode of its own, so that its place's last row left another stack and another next value."""
    buffer = ReplayBuffer(3, {"obs": {"shape": 3}, "number": {}}, next_of="obs", stack_compress="obs")
    numbers = count()

    def add() -> None:
        number = next(numbers)
        frames = 10 * number + np.arange(4)
        buffer.add(obs=frames[:3], next_obs=frames[1:], number=number)

    def check() -> None:
        rows = buffer.get_all_transitions()
        np.testing.assert_array_equal(rows["obs"], 10 * rows["number"] + np.arange(3))
        np.testing.assert_array_equal(rows["next_obs"], rows["obs"] + 1)

    for moment in count(1):
        for _ in range(4):
            add()
            check()
        came, _ = at_instruction(add, moment, lambda file: "marlcore/compat" in file, signals=True)
        check()
        if not came:
            break
    assert moment > 50


LOCAL = {**WAYS, "steps": summed(3)}


@pytest.mark.parametrize("way", LOCAL)
def test_a_local_buffer_feeds_the_shared_one(way) -> None:
    """The explorer of cpprb's page "Multiprocess Learning (Ape-X)"; its local buffer has what the shared one lacks."""
    shared, rng, added = MPPrioritizedReplayBuffer(100, NEXT), np.random.default_rng(0), []
    local = ReplayBuffer(20, fields_of(way), **LOCAL[way])
    for _ in range(8):
        local.add(**episode(rng, 5))
        local.on_episode_end()
        if local.get_stored_size() == local.get_buffer_size():
            sample = local.get_all_transitions()
            local.clear()
            shared.add(**sample, priorities=np.ones(20))
            added.append(sample)
    held = shared.get_all_transitions()
    assert_equal(held, {name: np.concatenate([sample[name] for sample in added]) for name in NEXT})
    assert shared.get_stored_size() == 40 and shared.sample(4)["weights"].tolist() == [1.0] * 4


def test_names_of_next_values_may_stand_in_env_dict() -> None:
    fields = {"a": {"shape": 2}, "next_a": {"shape": 2}}
    buffer = ReplayBuffer(4, fields, next_of="a", stack_compress=["a", "next_a"])
    rows = {"a": np.float32([[0, 1], [1, 2]]), "next_a": np.float32([[1, 2], [2, 3]])}
    buffer.add(**{name: array.copy() for name, array in rows.items()})
    assert_equal(buffer.get_all_transitions(), rows)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@BOTH
def test_returns_are_those_computed_step_by_step(cls, n) -> None:
    rng, gamma = np.random.default_rng(n), 0.8
    buffer = cls(500, NEXT, Nstep={"size": n, "rew": "rew", "gamma": gamma, "next": ["next_obs"]})
    for _ in range(25):
        steps, start = episode(rng, int(rng.integers(1, 9))), buffer.get_stored_size()
        length, added = len(steps["rew"]), 0
        steps["done"][-1] = rng.random() < 0.5  # otherwise the episode was cut off
        for piece in pieces(rng, steps, 4):
            before, added = max(added - n + 1, 0), added + len(piece["rew"])
            complete = max(added - n + 1, 0)
            assert buffer.add(**piece) == (start + before if complete > before else None)
            assert buffer.get_stored_size() == start + complete
        buffer.on_episode_end()
        assert buffer.get_stored_size() == start + length
        held = {name: values[start:] for name, values in buffer.get_all_transitions().items()}
        for t in range(length):
            last = min(t + n, length) - 1
            value = sum(gamma**k * steps["rew"][t + k] for k in range(last - t + 1))
            np.testing.assert_allclose(held["rew"][t, 0], value, rtol=1e-5)
            assert held["done"][t, 0] == steps["done"][t : max(t + n - 1, t + 1)].max()
            np.testing.assert_array_equal(held["next_obs"][t], steps["next_obs"][last])
            np.testing.assert_array_equal(held["obs"][t], steps["obs"][t])


def test_sums_end_with_their_episode_however_large_n_is() -> None:
    for n, done, sums in ((3, [0, 1, 0, 0, 0], [1.5, 1, 1.75]), (10**9, [0, 0, 1], [1.75, 1.5, 1])):
        buffer = ReplayBuffer(8, {"rew": {}, "done": {}}, Nstep={"size": n, "rew": "rew", "gamma": 0.5})
        buffer.add(rew=np.ones(len(done)), done=done)
        if n > 3:
            buffer.on_episode_end()
        np.testing.assert_array_equal(buffer.get_all_transitions()["rew"].ravel(), sums)


def test_an_interrupt_loses_or_repeats_no_step_that_waits() -> None:
    buffer = ReplayBuffer(32, {"t": {}, "rew": {}, "done": {}}, Nstep={"size": 3, "rew": "rew", "gamma": 1.0})
    for moment in count(1):
        buffer.clear()
        buffer.add(t=range(4), rew=np.ones(4), done=np.zeros(4))
        added = at_instruction(lambda: buffer.add(t=4, rew=1, done=0), moment, lambda f: "/cpprb/" in f, signals=True)
        ended = at_instruction(buffer.on_episode_end, moment, lambda f: "/cpprb/" in f, signals=True)
        buffer.on_episode_end()
        rows = buffer.get_all_transitions()
        steps = len(rows["t"])
        assert steps in (4, 5) and rows["t"].ravel().tolist() == [*range(steps)]
        assert rows["rew"].ravel().tolist() == [3.0] * (steps - 2) + [2.0, 1.0]
        if not added[0] and not ended[0]:
            break
    assert moment > 20


def test_priorities_wait_with_their_steps() -> None:
    buffer = PrioritizedReplayBuffer(8, {"t": {}, "done": {}}, alpha=1.0, eps=0.0, Nstep={"size": 3})
    for t, priority in enumerate([4.0, 2.0, 1.0, 8.0]):
        buffer.add(t=t, done=0, priorities=priority)
    assert buffer.get_max_priority() == 4.0
    sample = buffer.sample(100, beta=1.0)
    weights = dict(zip(sample["t"].ravel().tolist(), sample["weights"].tolist(), strict=True))
    assert weights == {0.0: 0.5, 1.0: 1.0}
    buffer.clear()
    buffer.on_episode_end()
    assert buffer.get_stored_size() == 0


@BOTH
def test_more_steps_than_rows_leave_the_last_ones(cls) -> None:
    buffer = cls(4, {"t": {}}, next_of="t")
    assert buffer.add(t=np.arange(11), next_t=np.arange(1, 12)) == 0
    held = buffer.get_all_transitions()
    np.testing.assert_array_equal(held["t"].ravel(), [8, 9, 10, 7])
    np.testing.assert_array_equal(held["next_t"].ravel(), [9, 10, 11, 8])
    assert sizes(buffer) == (4, 3, 4, False) and buffer.get_current_episode_len() == 11


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "longdouble", "complex64", "clongdouble"])
def test_a_field_keeps_its_dtype(dtype) -> None:
    buffer = ReplayBuffer(3, {"a": {"dtype": dtype, "shape": np.array([2, 2])}})
    buffer.add(a=np.ones((2, 2)))
    assert buffer.sample(1)["a"].dtype == np.dtype(dtype)


def test_an_empty_prioritized_buffer_gives_zeros_as_in_cpprb() -> None:
    buffer = PrioritizedReplayBuffer(4, {"t": {"dtype": "int64"}})
    zeros = {"t": np.zeros((2, 1), np.int64), "weights": np.ones(2, np.float32), "indexes": np.zeros(2, np.uint64)}
    assert_equal(buffer.sample(2), zeros)


def test_an_overwritten_priority_may_be_the_greatest() -> None:
    buffer = PrioritizedReplayBuffer(4, {"t": {}}, alpha=1.0, eps=0.0)
    buffer.add(t=np.arange(6), priorities=[9.0, 1, 1, 1, 1, 1])
    assert buffer.get_max_priority() == 9.0
    buffer.clear()
    for t, priority in enumerate([10.0, 0.5, 0.5, 0.5, 0.5, None]):
        buffer.add(t=t, priorities=priority)
    sample = buffer.sample(500, beta=1.0)
    weights = dict(zip(sample["t"].ravel().tolist(), sample["weights"].tolist(), strict=True))
    assert weights == pytest.approx({2.0: 1.0, 3.0: 1.0, 4.0: 1.0, 5.0: 0.05})
    buffer.clear()
    assert buffer.get_max_priority() == 1.0


def test_priorities_that_are_overwritten_unread_count_as_in_cpprb(program) -> None:
    pytest.importorskip("cpprb", reason=NO_CPPRB, exc_type=ImportError)
    assert program("import cpprb_alike; cpprb_alike.compare_overwritten(); print('equal')").finish() == "equal"


def test_updates_reach_rows_added_since_the_sample_unless_checked() -> None:
    for check, greatest in ((False, 9.0), (True, 1.0)):
        buffer = PrioritizedReplayBuffer(4, {"t": {}}, check_for_update=check)
        buffer.add(t=np.arange(4))
        buffer.sample(2)
        buffer.add(t=4)
        buffer.update_priorities(np.array([0.0]), [9.0])
        assert buffer.get_max_priority() == greatest


@pytest.mark.parametrize("way", WAYS)
def test_saved_transitions_are_loaded_again(way, tmp_path) -> None:
    make = partial(ReplayBuffer, env_dict=fields_of(way), **WAYS[way])
    buffer, rng = make(20), np.random.default_rng(0)
    for _ in range(5):
        buffer.add(**episode(rng, 6))
    buffer.save_transitions(tmp_path / "saved.npz")
    file = io.BytesIO()
    buffer.save_transitions(file, safe=False)
    file.seek(0)
    for saved in (tmp_path / "saved.npz", file):
        other = make(20)
        other.load_transitions(saved)
        assert_equal(other.get_all_transitions(), buffer.get_all_transitions())
    small = PrioritizedReplayBuffer(3, make.keywords["env_dict"], **WAYS[way])
    small.load_transitions(tmp_path / "saved.npz")
    assert_equal(small.get_all_transitions(), {k: v[-3:] for k, v in buffer.get_all_transitions().items()})
    assert small.sample(4)["weights"].tolist() == [1.0] * 4


def cpprbs_file(**parts) -> io.BytesIO:
    file = io.BytesIO()
    content = {"safe": True, "version": 1, "data": {"a": np.ones((2, 1))}, "Nstep": False}
    np.savez(file, **{**content, "cache": None, "next_of": None, **parts})
    file.seek(0)
    return file


def test_an_unsafe_file_of_cpprb_is_read() -> None:
    """It leaves next values out, except those at the end of an episode or of the ring."""
    rows = {"a": np.float32([[0], [1], [5], [6]])}
    cache = {1: {"next_a": np.float32([2])}, 3: {np.str_("next_a"): np.float32([7])}}
    buffer = ReplayBuffer(9, {"a": {}}, next_of="a")
    buffer.load_transitions(cpprbs_file(safe=False, data=rows, cache=cache, next_of=np.array(["a"])))
    np.testing.assert_array_equal(buffer.get_all_transitions()["next_a"].ravel(), [1, 2, 6, 7])


class Runs:
    def __reduce__(self):
        return print, ("executed",)


def test_a_file_with_code_is_refused_and_executes_nothing(capsys) -> None:
    buffer = ReplayBuffer(4, {"a": {}})
    check_refused(lambda: buffer.load_transitions(cpprbs_file(data={"a": Runs()})), ValueError, "builtins.print")
    assert capsys.readouterr().out == "" and buffer.get_stored_size() == 0


def test_a_damaged_file_is_refused() -> None:
    """NumPy's own unpickling of such arrays reads beyond their memory."""
    rows = {"a": np.ones((2, 1), np.float32)}
    whole = cpprbs_file(data=rows, cache={1: {"a": np.float32([2])}}, safe=False).getvalue()
    buffer, rng, refused = ReplayBuffer(4, {"a": {}}), np.random.default_rng(0), 0
    for _ in range(120):
        damaged = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(damaged, "w") as copy:
            for name in source.namelist():
                content = np.frombuffer(source.read(name), np.uint8).copy()
                if name in ("data.npy", "cache.npy"):
                    content[rng.integers(0, len(content), 2)] = rng.integers(0, 128, 2)
                copy.writestr(name, content.tobytes())
        buffer.clear()
        try:
            buffer.load_transitions(damaged)
        except (ValueError, KeyError):
            refused += 1
        assert buffer.get_stored_size() in (0, 2)
    assert refused > 60


def test_rows_lie_in_the_file_of_mmap_prefix(tmp_path) -> None:
    for filling in (1, 2):  # the second one replaces the first one's file
        buffer = create_buffer(32, {"obs": {"shape": 3}, "done": {}}, mmap_prefix=tmp_path / "mmap")
        assert [file.name for file in tmp_path.iterdir()] == ["mmap_obs.dat"]
        buffer.add(obs=np.full((40, 3), filling), done=np.zeros(40))
        assert set(buffer.get_all_transitions()["obs"].ravel()) == {filling}
        buffer.close()
    (tmp_path / "mine_a.dat").write_text("kept")
    with pytest.raises(SegmentCorrupt):
        ReplayBuffer(4, {"a": {}}, mmap_prefix=tmp_path / "mine")
    assert (tmp_path / "mine_a.dat").read_text() == "kept"


@BOTH
def test_a_buffer_belongs_to_the_process_that_made_it(cls) -> None:
    buffer = cls(4, {"a": {}}, next_of="a")
    buffer.add(a=0, next_a=1)
    check_refused(lambda: pickle.dumps(buffer), TypeError, "use MPReplayBuffer")
    assert stale_in_a_fork(lambda: buffer.add(a=0, next_a=1), lambda: buffer.sample(1), buffer.get_stored_size)
    assert buffer.sample(1)["next_a"] == 1


def test_unknown_arguments_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="PrioritizedReplayBuffer: ignores the arguments obs_shape, act_dim"):
        buffer = create_buffer(4, obs_shape=3, act_dim=1, prioritized=True)
    assert buffer._encode_sample(0) == {}


DONE = {"a": {}, "done": {}}


def loaded(**parts) -> None:
    ReplayBuffer(4, {"a": {}}).load_transitions(cpprbs_file(**parts))


NAMES = "expected names among ['a', 'done'], got 'b'"
ARGUMENTS: list[tuple[dict[str, object], str]] = [
    ({"size": 0}, "size: expected an integer of at least 1, got 0"),
    ({"next_of": "b"}, f"next_of: {NAMES}"),
    ({"stack_compress": ["a", "b"]}, f"stack_compress: {NAMES}"),
    ({"alpha": -1}, "alpha: expected a finite number of at least 0, got -1"),
    ({"env_dict": {"priorities": {}}}, "env_dict: 'priorities' is the name of an argument of add"),
    ({"env_dict": {"a": {}}, "Nstep": {"size": 3}}, "Nstep: expected a field 'done' of shape (1,) in env_dict"),
    ({"Nstep": 3}, "Nstep: expected a dict with some of"),
    ({"Nstep": {"sise": 3}}, "Nstep: expected a dict with some of"),
    ({"Nstep": {"gamma": 0.9}}, "Nstep['size']: expected an integer of at least 1, got None"),
    ({"Nstep": {"size": 3, "gamma": 2}}, "Nstep['gamma']: expected a number from 0 to 1, got 2"),
    ({"Nstep": {"size": 3, "rew": "b"}}, "Nstep['rew']: expected names among"),
    ({"Nstep": {"size": 3, "next": "b"}}, "Nstep['next']: expected names among"),
]
REFUSED: list[Refused] = [
    (lambda: ReplayBuffer(4, 5), TypeError, "env_dict: expected a dict of fields, got 5"),
    (lambda: ReplayBuffer(4, DONE, mmap_prefix=5), TypeError, "mmap_prefix: expected a path, got 5"),
    (lambda: PrioritizedReplayBuffer(4, DONE).update_priorities([0.5], [1.0]), TypeError,
        "indexes: expected integers, got dtype float64"),
    *((partial(PrioritizedReplayBuffer, **{"size": 4, "env_dict": DONE, **given}), says) for given, says in ARGUMENTS),
    *((partial(train, None, None, None, None, **given), "expected an integer")
      for given in ({"max_steps": 2**64}, {"max_steps": -1}, {"max_episodes": -1}, {"n_warmups": 0.5})),
    (lambda: ReplayBuffer(4, DONE, next_of="a").add(a=0, done=0), KeyError, "next_a: expected a value"),
    (lambda: ReplayBuffer(4, DONE).load_transitions(io.BytesIO(b"no")),
        "file: expected transitions saved in cpprb's format of version 1"),
    (lambda: loaded(version=2), "cpprb's format of version 1 (ValueError('version 2'))"),
    (lambda: loaded(Nstep=True), "file: expected transitions with Nstep False, got Nstep True"),
    (lambda: loaded(data={"b": np.ones((2, 1))}), KeyError, "a: expected a value for each of"),
]  # fmt: skip
test_refuses = refusals(REFUSED)


def countdown(length: int, gymnasium: bool) -> SimpleNamespace:
    """An environment of episodes of this length, of Gymnasium's interface (which truncates) or of gym's."""
    steps = count()

    def step(action):
        over = (next(steps) + 1) % length == 0
        return (np.ones(3), 1.0, False, over, {}) if gymnasium else (np.ones(3), 1.0, over, {})

    return SimpleNamespace(reset=lambda: (np.zeros(3), {}) if gymnasium else np.zeros(3), step=step)


TRAINED = {"obs": {"shape": 3}, "act": {}, "rew": {}, "next_obs": {"shape": 3}, "done": {}}


@pytest.mark.parametrize("gymnasium", [False, True])
@pytest.mark.parametrize("cls", [ReplayBuffer, PrioritizedReplayBuffer, MPReplayBuffer])
def test_train_adds_each_step_and_updates(cls, gymnasium, caplog) -> None:
    caplog.set_level(logging.INFO, "marlcore")
    buffer, updates, episodes = cls(64, TRAINED), [], []

    def update(sample, step, episode):
        updates.append((step, episode, len(sample["obs"])))
        return np.full(8, 5.0) if step % 2 else 5.0

    train(buffer, countdown(5, gymnasium), lambda obs, step, episode, warming_up: warming_up, update, max_steps=18,
          n_warmups=4, batch_size=8, episode_callback=lambda *ended: episodes.append(ended))  # fmt: skip
    assert updates == [(step, step // 5, 8) for step in range(4, 18)]
    assert episodes == [(i, 4, 5.0) for i in range(3)]
    held = buffer.get_all_transitions()
    np.testing.assert_array_equal(held["act"].ravel(), np.arange(18) < 4)
    assert held["done"].sum() == (0 if gymnasium else 3)  # an episode that was truncated is not done
    np.testing.assert_array_equal(held["obs"][:, 0], np.arange(18) % 5 > 0)
    if cls is PrioritizedReplayBuffer:
        assert buffer.get_max_priority() == 5.0
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"episode {i}: 5 steps ({5 * i + 5} in all)" for i in range(3)]  # fmt: skip


def test_trains_functions_replace_its_defaults() -> None:
    buffer, seen = ReplayBuffer(64, {"x": {}}, next_of="x"), []
    train(
        buffer, countdown(3, True), lambda obs, *_: seen.append(obs), lambda *_: None, max_steps=100, max_episodes=2,
        after_step=lambda obs, action, outcome, step, episode: {"x": step, "next_x": step + 1},
        done_check=lambda transition: transition["x"] % 4 == 3, obs_update=lambda transition: transition["next_x"],
        rew_sum=lambda total, transition: total + transition["x"],
    )  # fmt: skip
    assert buffer.get_all_transitions()["x"].ravel().tolist() == list(range(8))
    assert seen[1:4] + seen[5:] == [1, 2, 3, 5, 6, 7]


def spaced(obs: object, act: object) -> SimpleNamespace:
    return SimpleNamespace(observation_space=obs, action_space=act)


def test_fields_of_an_environment_are_those_of_cpprb() -> None:
    """For a Dict space, `before_add` gives the names of the fields, unlike in cpprb."""
    spaces = pytest.importorskip("gymnasium").spaces
    box, some = spaces.Box(0, 1, (2, 3)), spaces.MultiDiscrete([2, 3])
    pair, named = spaces.Tuple([box, some]), spaces.Dict({"far": box, "near": spaces.MultiBinary(4)})
    cases = [(box, spaces.Discrete(3), ["obs"]), (pair, pair, ["obs0", "obs1"]), (named, some, ["far", "near"])]
    environments = [spaced(obs, act) for obs, act, _ in cases]
    for env, (obs, act, names) in zip(environments, cases, strict=True):
        buffer, before_add = ReplayBuffer(9, create_env_dict(env)), create_before_add_func(env)
        buffer.add(**before_add(obs.sample(), act.sample(), last := obs.sample(), 1.0, False))
        held = buffer.get_all_transitions()
        for name, part in zip(names, [last] if obs is box else getattr(last, "values", lambda: last)(), strict=True):
            np.testing.assert_array_equal(held[f"next_{name}"].ravel(), part.ravel())
    check_refused(lambda: create_env_dict(spaced(box, object())), ValueError, "act: expected a Box, Discrete, MultiDis")
    theirs = pytest.importorskip("cpprb", reason="cpprb has no wheel for this Python", exc_type=ImportError)
    for env in environments:
        ours, fields = (create(env, int_type=np.int16) for create in (create_env_dict, theirs.create_env_dict))
        assert ours.keys() == fields.keys() and all(ours[name]["dtype"] == fields[name]["dtype"] for name in fields)
        assert all(
            np.ravel(ours[name]["shape"]).tolist() == np.ravel(fields[name]["shape"]).tolist() for name in fields
        )
