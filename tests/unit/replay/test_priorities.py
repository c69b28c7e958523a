"""Prioritized draws: their distribution, weights, updates and state, against plain Python and NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from model import Model, Priorities, chi_square_limit, fill
from refused import check_refused

from marlcore import Field, NotEnoughData, Prioritized, ReplayBuffer, Sequence, TransitionSpec
from marlcore.kernels.priorities import DRAWN

SCALAR = TransitionSpec(Field(), Field((), "int64"))
ACTORS = TransitionSpec(Field(), Field((), "int64"), {"priority": Field()})
WINDOWS = [
    {"stack": 1, "n_step": 1},
    {"stack": 4, "n_step": 1},
    {"stack": 1, "n_step": 3},
    {"stack": 4, "n_step": 3},
    {"stack": 1, "n_step": 1, "sequence": Sequence(5, 2)},
    {"stack": 3, "n_step": 2, "sequence": Sequence(6, 1, 2)},
]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def write(replay: ReplayBuffer, rows: int, lane: int = 0, first: int = 0, **extras) -> None:
    """Rows of one episode that goes on; the action is the row's number."""
    with replay.writer(lane) as writer:
        for i in range(rows):
            row = {name: values[i] for name, values in extras.items()}
            writer.add(float(first + i), first + i, 1.0, **row)


@pytest.fixture
def replay() -> Iterator[ReplayBuffer]:
    """A full one, of an episode of twenty rows."""
    with ReplayBuffer.create(SCALAR, 20) as made:
        write(made, 20)
        yield made


def unchanged(sampler, before: dict[str, np.ndarray]) -> bool:
    """Whether its state is still that of `before`."""
    return all((value == before[name]).all() for name, value in sampler.state_dict().items())


def draw_all(sampler, oracle: Priorities) -> None:
    """Draws until each that may be drawn was."""
    while oracle.catch_up().keys() - oracle.drawn:
        batch = sampler.sample()
        oracle.check(batch, sampler, oracle.options.beta)
        oracle.model.check(batch, **oracle.window, weighted=True)


def assert_drawn_in_proportion(sampler, oracle: Priorities, batches: int = 150) -> None:
    """Chi-square of many draws against mass / total over all that may be drawn."""
    masses = oracle.catch_up() and oracle.masses
    indices = np.concatenate([sampler.sample().index for _ in range(batches)])
    oracle.drawn.update(indices.tolist())
    assert set(indices.tolist()) <= masses.keys()
    order = sorted(masses, key=masses.__getitem__)
    counts = np.array([(indices == index).sum() for index in order])
    expected = np.array([masses[index] for index in order]) * len(indices) / sum(masses.values())
    # The rarest together, so that no bin expects less than ten.
    few = max(1, int(np.searchsorted(np.cumsum(expected), 10) + 1), int((expected < 10).sum()))
    counts = np.concatenate([[counts[:few].sum()], counts[few:]])
    expected = np.concatenate([[expected[:few].sum()], expected[few:]])
    assert len(counts) > 3
    assert ((counts - expected) ** 2 / expected).sum() <= chi_square_limit(len(counts))


# ---- how likely each is ----


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_each_is_drawn_in_proportion_to_its_mass(window, alpha, rng):
    """In three lanes, one wrapped, with boundary rows and seams: new, updated, and after some rows were lost."""
    with ReplayBuffer.create(SCALAR, 3 * 40, lanes=3) as replay:
        model, options = Model(SCALAR, 3, 40), Prioritized(alpha=alpha, beta=0.4, epsilon=0.01)
        oracle = Priorities(model, options, **window)
        sampler = replay.sampler(48, seed=4, gamma=0.99, min_size=1, prioritized=options, **window)
        fill(replay, model, rng, [90, 15, 30], end=0.1)
        assert_drawn_in_proportion(sampler, oracle)
        draw_all(sampler, oracle)
        for _ in range(2):
            indices = rng.permutation(sorted(oracle.masses))
            priorities = rng.random(len(indices)) ** 2 * 5
            sampler.update_priorities(indices, priorities)
            oracle.update(indices, priorities)
            assert_drawn_in_proportion(sampler, oracle)
            fill(replay, model, rng, [13, 5, 17], end=0.1)
            assert_drawn_in_proportion(sampler, oracle)
            draw_all(sampler, oracle)
        assert sampler.stats.ignored == oracle.ignored == 0


def test_the_chi_square_notices_a_wrong_alpha(rng):
    """A positive control of the test above."""
    with ReplayBuffer.create(SCALAR, 40) as replay:
        model = Model(SCALAR, 1, 40)
        sampler = replay.sampler(48, seed=4, min_size=1, prioritized=Prioritized(alpha=0.6))
        oracle = Priorities(model, Prioritized(alpha=0.7), stack=1, n_step=1)
        fill(replay, model, rng, [40])
        oracle.catch_up()
        while len(oracle.drawn) < len(oracle.masses):
            oracle.drawn.update(sampler.sample().index.tolist())
        indices = np.array(sorted(oracle.masses))
        priorities = rng.random(len(indices)) ** 2 * 5
        sampler.update_priorities(indices, priorities)
        oracle.update(indices, priorities)
        with pytest.raises(AssertionError):
            assert_drawn_in_proportion(sampler, oracle)


def test_row_i_is_drawn_from_the_i_th_part_of_the_mass(rng):
    with ReplayBuffer.create(SCALAR, 60, lanes=2) as replay:
        write(replay, 30, 0)
        write(replay, 44, 1)
        sampler = replay.sampler(16, seed=1, min_size=1, prioritized=Prioritized(alpha=1.0, epsilon=0.0))
        for _ in range(60):
            sampler.update_priorities(index := sampler.sample().index, rng.random(len(index)) + 0.01)
        for _ in range(50):
            batch = sampler.sample()
            masses = sampler.state_dict()["masses"]
            ends = np.cumsum(masses)
            part = ends[-1] / 16
            leaves = batch.index % 2 * 30 + batch.index // 2 % 30
            parts = np.arange(16)
            assert (ends[leaves] >= parts * part * (1 - 1e-12)).all()
            assert ((ends - masses)[leaves] <= (parts + 1) * part * (1 + 1e-12)).all()


def test_without_epsilon_a_priority_of_zero_is_never_drawn(replay):
    sampler = replay.sampler(64, seed=1, min_size=1, prioritized=Prioritized(epsilon=0.0))
    assert set(sampler.sample().index.tolist()) == set(range(19))
    sampler.update_priorities(np.arange(18), np.zeros(18))
    assert sampler.sample().index.tolist() == [18] * 64
    sampler.update_priorities([18], [0.0])
    assert not sampler.can_sample()
    with pytest.raises(NotEnoughData, match="has a priority of 0, and epsilon is 0"):
        sampler.sample()
    write(replay, 2, first=20)  # at the highest priority so far, which is 1 still
    assert sampler.sample().index.tolist() == [20] * 64


# ---- weights ----


def test_beta_rises_to_one_in_equal_steps_and_stays_there(replay, rng):
    """Weights are (N P)^-beta, divided by the batch's largest: Schaul et al. 2016, section 3.4."""
    sampler = replay.sampler(16, seed=2, prioritized=Prioritized(alpha=1.0, beta=0.2, epsilon=0.0, beta_steps=4))
    for beta in (0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0):
        assert sampler.can_sample()  # which is no batch
        masses = sampler.state_dict()["masses"]
        batch = sampler.sample()
        drawn = masses[batch.index]
        np.testing.assert_allclose(batch.weight, (drawn.min() / drawn) ** beta, rtol=1e-6)
        sampler.update_priorities(batch.index, rng.random(16) + 0.1)


# ---- first priorities ----


FIRST = {  # an actor's priorities, and the masses: NaN stands for the highest so far, and the last row has no successor
    "given": ([0.5, np.nan, 4.0, np.nan, 2.0, 0.0, 1.0], [0.75, 1.25, 4.25, 4.25, 2.25, 0.25, 0.0]),
    "never given": ([np.nan] * 4, [1.25, 1.25, 1.25, 0.0]),
}


@pytest.mark.parametrize("case", FIRST)
def test_the_first_priorities(case):
    """The first of all is 1, with epsilon added as to any other."""
    given, masses = FIRST[case]
    with ReplayBuffer.create(ACTORS, 20) as replay:
        write(replay, len(given), priority=given)
        options = Prioritized(alpha=1.0, epsilon=0.25, initial="priority")
        sampler = replay.sampler(8, min_size=1, seed=0, prioritized=options)
        index = sampler.sample().index
        assert sampler.state_dict()["masses"].tolist()[: len(given)] == masses
        sampler.update_priorities([index[0], index[0]], [6.0, 0.5])
        write(replay, 2, first=len(given), priority=[np.nan] * 2)
        sampler.sample()
        # 6.25 was a priority, though the later one for the same index counts.
        expected = [*masses[:-1], 0.0, 6.25, 0.0]
        expected[index[0]] = 0.75
        assert sampler.state_dict()["masses"].tolist()[: len(expected)] == expected


@pytest.mark.parametrize("bad", [-1.0, -1e-30, np.inf, -np.inf])
def test_an_actors_bad_priority_names_lane_and_ticket(bad):
    """Once; the row counts as the highest so far from then on. An overwritten one is no error."""
    with ReplayBuffer.create(ACTORS, 40, lanes=2) as replay:
        write(replay, 7, 1, priority=[1.0, 2.0, 1.0, bad, 1.0, 1.0, 1.0])
        options = {"min_size": 1, "prioritized": Prioritized(alpha=1.0, epsilon=0.0, initial="priority")}
        sampler, late = replay.sampler(8, **options), replay.sampler(8, **options)
        says = "priority: expected priorities from 0 to 2.25e+306, got another in lane 1, ticket 3"
        check_refused(sampler.sample, ValueError, says)
        sampler.sample()
        assert sampler.state_dict()["masses"].tolist()[20:26] == [1, 2, 1, 2, 1, 1]
        assert late.can_sample()
        write(replay, 50, 1, priority=np.ones(50))
        assert (late.sample().action < 50).all()


# ---- updates ----


def test_priorities_of_foreign_rows_are_ignored_and_counted(rng):
    with ReplayBuffer.create(SCALAR, 40, lanes=2) as replay:
        write(replay, 20, 0)
        write(replay, 20, 1)
        sampler = replay.sampler(4, min_size=1, seed=0, prioritized=Prioritized(alpha=1.0, epsilon=0.0))
        drawn = sampler.sample().index
        before = sampler.state_dict()
        others = np.setdiff1d(np.arange(40), drawn)
        foreign = np.array([-1, -40, 40, 41, 2**62, -(2**63), 2**63 - 1])
        sampler.update_priorities(others, np.full(len(others), 9.0))
        sampler.update_priorities(foreign, np.full(len(foreign), 9.0))
        sampler.update_priorities(foreign.astype(np.uint64), np.full(len(foreign), 9.0))
        assert sampler.stats.ignored == len(others) + 2 * len(foreign)
        assert unchanged(sampler, before)

        write(replay, 20, 0, first=20)  # all of lane 0 is overwritten, before the sampler looks again
        gone = drawn % 2 == 0
        sampler.update_priorities(drawn, np.full(4, 9.0))
        assert sampler.stats.ignored == len(others) + 2 * len(foreign) + gone.sum()
        sampler.update_priorities(drawn + 40 * gone, np.full(4, 9.0))  # the rows that took their places
        assert sampler.stats.ignored == len(others) + 2 * len(foreign) + 2 * gone.sum()
        sampler.sample()
        masses = sampler.state_dict()["masses"]
        assert (masses[20 + drawn[~gone] // 2] == 9).all()


def test_asking_whether_a_batch_can_be_drawn_draws_nothing(replay):
    sampler = replay.sampler(4, prioritized=Prioritized())
    for _ in range(20):
        assert sampler.can_sample()
    sampler.update_priorities(np.arange(19), np.ones(19))
    assert sampler.stats.ignored == 19
    assert not (sampler.state_dict()["marks"] == DRAWN).any()


def test_more_priorities_than_a_batch_has_may_be_given_at_once(rng):
    with ReplayBuffer.create(SCALAR, 500) as replay:
        write(replay, 500)
        sampler = replay.sampler(8, seed=0, prioritized=Prioritized(alpha=1.0, epsilon=0.0))
        drawn = np.unique(np.concatenate([sampler.sample().index for _ in range(300)]))
        priorities = rng.random(len(drawn))
        sampler.update_priorities(drawn, priorities)
        assert (sampler.state_dict()["masses"][drawn] == priorities).all()
        assert sampler.stats.ignored == 0
        assert sampler._strategy.total == pytest.approx(sampler.state_dict()["masses"].sum())


NUMBERS = "priority: expected finite numbers of at least 0"
REFUSED = {  # priorities of the rows of a batch of 8, beginning with the first, by the options of the sampler
    **{
        f"{bad} in row 5": ({}, None, [3.0] * 5 + [bad] + [3.0] * 2, f"{NUMBERS}, got {bad} in row 5, index")
        for bad in (np.nan, np.inf, -np.inf, -1.0, -1e-300)
    },
    **{
        f"an infinite sum, {alpha}": ({"alpha": alpha}, [0, 1], priority, f"{NUMBERS}, not above ")
        for alpha, priority in ((2.0, [1e200, 1.0]), (1.0, [1.7e308, 1.0]), (1.0, [1.0, 5e307]))
    },
    "fewer": ({}, [0, 1], [1.0], "priority: expected one for each index, shape (2,), got (1,)"),
    "nested": ({}, [0], [[1.0]], "priority: expected one for each index, shape (1,), got (1, 1)"),
    "nested indices": ({}, [[0]], [[1.0]], "index: expected integers (n,), got int64 (1, 1)"),
    "real indices": ({}, [0.0], [1.0], "index: expected integers (n,), got float64 (1,)"),
    "true": ({}, [True], [1.0], "index: expected integers (n,), got bool (1,)"),
    "no arrays": ({}, 3, 1.0, "index: expected integers (n,), got int64 ()"),
    "words": ({}, None, ["a"] * 8, "priority: expected numbers (n,), got ['a'"),
    "ragged": ({}, None, [[1.0], [1.0, 2.0]], "priority: expected numbers (n,), got [[1.0]"),
    "a uniform sampler": (None, None, [1.0] * 8, "expected a sampler with prioritized"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_priorities_and_changes_nothing(replay, case):
    options, index, priority, says = REFUSED[case]
    sampler = replay.sampler(8, seed=0, prioritized=None if options is None else Prioritized(**options))
    drawn = sampler.sample().index
    before = sampler.state_dict()
    error = TypeError if options is None else ValueError
    check_refused(lambda: sampler.update_priorities(drawn if index is None else index, priority), error, says)
    assert unchanged(sampler, before) and sampler.stats.ignored == 0
    if options is not None:
        sampler.update_priorities([], [])


# ---- states ----


@pytest.mark.parametrize("window", WINDOWS[2:5], ids=str)
def test_a_saved_sampler_draws_the_same_batches_bit_for_bit(window, rng, tmp_path):
    options = {"min_size": 1, "prioritized": Prioritized(alpha=0.8, beta=0.3, beta_steps=50), **window}
    with ReplayBuffer.create(SCALAR, 3 * 40, lanes=3) as replay:
        fill(replay, Model(SCALAR, 3, 40), rng, [90, 15, 30], end=0.1)
        sampler = replay.sampler(24, seed=4, **options)
        for _ in range(30):
            batch = sampler.sample()
            sampler.update_priorities(batch.index, rng.random(24))
        write(replay, 9, 1)  # the state lags behind the rows
        replay.save(tmp_path / "saved", sampler)
        with ReplayBuffer.load(tmp_path / "saved") as copy:
            again = copy.sampler(24, seed=99, **options)
            again.load_state_dict(copy.sampler_state)
            for step in range(60):
                if step % 10 == 5:
                    for one in (replay, copy):
                        write(one, 7, step % 3)
                ours, theirs = sampler.sample(), again.sample()
                for name in ("index", "obs", "action", "reward", "discount", "weight", "valid"):
                    assert (getattr(ours, name) == getattr(theirs, name)).all(), name
                priorities = rng.random(24)
                for one in (sampler, again):
                    one.update_priorities(ours.index, priorities)
            mine, other = sampler.state_dict(), again.state_dict()
            assert mine.keys() == other.keys()
            assert all((mine[name] == other[name]).all() for name in mine)
            assert sampler.stats.ignored == again.stats.ignored


HOSTILE = {
    "no generator": lambda s: s.pop("generator"),
    "a generator of zeros": lambda s: s["generator"].fill(0),
    "a generator of another dtype": lambda s: s.update(generator=s["generator"].astype(np.int64)),
    "no masses": lambda s: s.pop("masses"),
    "masses of another length": lambda s: s.update(masses=s["masses"][1:]),
    "masses of another dtype": lambda s: s.update(masses=s["masses"].astype(np.float32)),
    "a negative mass": lambda s: s["masses"].__setitem__(3, -1.0),
    "a mass that is no number": lambda s: s["masses"].__setitem__(3, np.nan),
    "an infinite mass": lambda s: s["masses"].__setitem__(3, np.inf),
    "mass where nothing was written": lambda s: s["masses"].__setitem__(35, 1.0),
    "an infinite highest": lambda s: s.update(highest=np.array(np.inf)),
    "a negative highest": lambda s: s.update(highest=np.array(-1.0)),
    "negative batches": lambda s: s.update(batches=np.array(-5)),
    "tickets not written yet": lambda s: s["reach"].__setitem__((1, 0), 31),
    "tickets below 0": lambda s: s["reach"].__setitem__((0, 0), -1),
    "a floor above what was caught": lambda s: s["reach"].__setitem__((0, 1), 11),
    "more tickets than a lane has": lambda s: s["reach"].__setitem__((0, 0), 0),
    "reach of another shape": lambda s: s.update(reach=s["reach"][:, :1]),
    "a list": lambda s: s.update(masses=s["masses"].tolist()),
}


@pytest.fixture
def half_filled() -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(SCALAR, 40, lanes=2) as made:
        write(made, 30, 0)
        write(made, 10, 1)
        yield made


KIND = "state: expected that of a sampler with the"
NONE = "state: expected exponents as float64 (2,), got nothing"
PLAIN = {"prioritized": Prioritized()}
OTHERS = {  # options of the sampler, and of the one whose state it is given
    "another alpha": (PLAIN, {"prioritized": Prioritized(alpha=0.5)}, f"{KIND} exponents"),
    "no sequence": (PLAIN | {"sequence": Sequence(5)}, PLAIN, f"{KIND} window"),
    "another n_step": (PLAIN | {"n_step": 3}, PLAIN, f"{KIND} window"),
    "uniform": (PLAIN, {}, NONE),
}


@pytest.mark.parametrize("case", [*HOSTILE, *OTHERS, "None"])
def test_refuses_states_and_changes_nothing(half_filled, case):
    options, others, says = OTHERS.get(case, (PLAIN, PLAIN, "state: "))
    sampler, other = (half_filled.sampler(8, min_size=1, seed=0, **kind) for kind in (options, others))
    if others:
        other.update_priorities(other.sample().index, np.full(8, 5.0))
    state = other.state_dict()
    HOSTILE.get(case, lambda state: None)(state)
    before = sampler.state_dict()
    error = TypeError if case == "None" else ValueError
    check_refused(lambda: sampler.load_state_dict(None if case == "None" else state), error, says)
    assert unchanged(sampler, before)


def test_a_uniform_sampler_takes_any_state_and_states_are_copies(replay):
    uniform, other = replay.sampler(8, seed=0), replay.sampler(8, seed=1)
    prioritized = replay.sampler(8, seed=0, prioritized=Prioritized())
    other.load_state_dict(uniform.state_dict())
    assert other.sample().index.tolist() == uniform.sample().index.tolist()
    other.load_state_dict(state := prioritized.state_dict())
    kept = {name: value.copy() for name, value in state.items()}
    for _ in range(2):
        prioritized.update_priorities(prioritized.sample().index, np.full(8, 5.0))
        assert all((state[name] == kept[name]).all() for name in kept)
        prioritized.load_state_dict(state)


def test_the_highest_allowed_priorities_have_a_finite_sum(replay):
    for alpha in (0.5, 1.0, 3.0):
        options = Prioritized(alpha=alpha)
        sampler = replay.sampler(64, seed=0, prioritized=options)
        index = sampler.sample().index
        sampler.update_priorities(index, np.full(64, options.limit(20)))
        batch = sampler.sample()
        assert np.isfinite(batch.weight).all() and len(np.unique(batch.index)) > 10


def test_priorities_may_be_tensors_with_gradients(replay):
    torch = pytest.importorskip("torch")
    sampler = replay.sampler(4, seed=0, prioritized=Prioritized())
    batch = sampler.sample().torch()
    errors = torch.full((4,), 5.0, requires_grad=True).abs()
    sampler.update_priorities(batch.index, errors)
    assert sampler.state_dict()["highest"] == pytest.approx(5.0)


@pytest.mark.long
def test_priorities_of_rows_ahead_of_the_counters_are_ignored(program):
    """They have no leaf: in a process of its own, since one beside the tree could end it by a signal."""
    out = program("""
        import numpy as np
        from mapped import Mapped
        from marlcore import Field, Prioritized, ReplayBuffer, TransitionSpec
        with ReplayBuffer.create(TransitionSpec(Field(), Field()), 20) as replay:
            with replay.writer() as writer:
                for i in range(40):
                    writer.add(0.0, 0.0, 1.0)
            counters = Mapped(replay).counters()
            sampler = replay.sampler(4, prioritized=Prioritized())
            counters[:] = 2**61
            drawn = sampler.sample().index
            counters[:] = 40
            sampler.update_priorities(drawn, np.ones(4))
            print(drawn.min() > 2**60, sampler.stats.ignored)
        """).finish()
    assert out == "True 4"
