"""Prioritized draws: their distribution, weights, updates and state, against plain Python and NumPy."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import pytest
from model import Model, Priorities, chi_square_limit, fill
from refused import check_refused
from tiers import long_but

from marlcore import Field, NotEnoughData, Prioritized, ReplayBuffer, Sequence, TransitionSpec

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
    """Adds rows to an episode that does not end; the action is the row's number."""
    with replay.writer(lane) as writer:
        for i in range(rows):
            row = {name: values[i] for name, values in extras.items()}
            writer.add(float(first + i), first + i, 1.0, **row)


@pytest.fixture
def replay() -> Iterator[ReplayBuffer]:
    """A full replay with one episode of twenty rows."""
    with ReplayBuffer.create(SCALAR, 20) as made:
        write(made, 20)
        yield made


def unchanged(sampler, before: dict[str, np.ndarray]) -> bool:
    return all((value == before[name]).all() for name, value in sampler.state_dict().items())


def draw_all(sampler, oracle: Priorities) -> None:
    """Draws at least one batch, and until every row that can be drawn was drawn."""
    left = oracle.catch_up()
    while left:
        batch = sampler.sample()
        oracle.check(batch, sampler, oracle.options.beta)
        oracle.model.check(batch, **oracle.window, weighted=True)
        left = oracle.catch_up().keys() - oracle.drawn


def assert_drawn_in_proportion(sampler, oracle: Priorities, batches: int = 150) -> None:
    """Compares the frequencies of many draws with mass / total by a chi-square test."""
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


@pytest.mark.parametrize(
    ("alpha", "window"),
    long_but([(0.0, WINDOWS[0]), *((0.6, w) for w in WINDOWS[2:])], product((0.0, 0.6, 1.0), WINDOWS)),
)
def test_each_is_drawn_in_proportion_to_its_mass(window, alpha, rng):
    """Three lanes, one of them wrapped, with boundary rows and seams; before and after updates and overwrites."""
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
    """This is the positive control of the test above."""
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


@pytest.mark.parametrize("bad", [-1.0, -1e-30, np.inf, -np.inf])
def test_an_actors_bad_priority_names_lane_and_ticket(bad):
    """The error comes once; then the row counts as the highest so far, as with NaN. An overwritten row is no error."""
    with ReplayBuffer.create(ACTORS, 40, lanes=2) as replay:
        write(replay, 7, 1, priority=[1.0, 2.0, 1.0, bad, np.nan, 1.0, 1.0])
        options = {"min_size": 1, "prioritized": Prioritized(alpha=1.0, epsilon=0.0, initial="priority")}
        sampler, late = replay.sampler(8, **options), replay.sampler(8, **options)
        says = "priority: expected priorities from 0 to 2.25e+306, got another number in lane 1, ticket 3"
        check_refused(sampler.sample, ValueError, says)
        sampler.sample()
        assert sampler.state_dict()["masses"].tolist()[20:26] == [1, 2, 1, 2, 2, 1]
        assert late.can_sample()
        write(replay, 50, 1, priority=np.ones(50))
        assert (late.sample().action < 50).all()


NUMBERS = "priority: expected finite numbers of at least 0"
REFUSED = [  # the options of a sampler; rows of a batch of 8, or all; priorities for them; what it must say
    *(({}, None, [3.0] * 5 + [bad] + [3.0] * 2, f"{NUMBERS}, got {bad} in row 5, index")
      for bad in (np.nan, np.inf, -np.inf, -1.0, -1e-300)),
    *(({"alpha": alpha}, [0, 1], priority, f"{NUMBERS}, not above ")  # an infinite sum
      for alpha, priority in ((2.0, [1e200, 1.0]), (1.0, [1.7e308, 1.0]), (1.0, [1.0, 5e307]))),
    ({}, [0, 1], [1.0], "priority: expected a number for each index, shape (2,), got (1,)"),
    ({}, [0], [[1.0, 1.0]], "priority: expected a number for each index, shape (1,), got (1, 2)"),
    ({}, [[0]], [[1.0]], "index: expected integers (n,), got int64 (1, 1)"),
    ({}, [0.0], [1.0], "index: expected integers (n,), got float64 (1,)"),
    ({}, [True], [1.0], "index: expected integers (n,), got bool (1,)"),
    ({}, 3, 1.0, "index: expected integers (n,), got int64 ()"),
    ({}, None, ["a"] * 8, "priority: expected numbers (n,), got ['a'"),
    ({}, None, [[1.0], [1.0, 2.0]], "priority: expected numbers (n,), got [[1.0]"),
    (None, None, [1.0] * 8, "expected a sampler with prioritized"),
]  # fmt: skip


def test_refuses_priorities_and_changes_nothing(replay):
    for options, index, priority, says in REFUSED:
        sampler = replay.sampler(8, seed=0, prioritized=None if options is None else Prioritized(**options))
        drawn = sampler.sample().index
        before = sampler.state_dict()
        update = partial(sampler.update_priorities, drawn if index is None else index, priority)
        check_refused(update, TypeError if options is None else ValueError, says)
        assert unchanged(sampler, before) and sampler.stats.ignored == 0
    replay.sampler(8, prioritized=Prioritized()).update_priorities([], [])


HOSTILE = [
    lambda s: s.pop("generator"),
    lambda s: s["generator"].fill(0),
    lambda s: s.update(generator=s["generator"].astype(np.int64)),
    lambda s: s.pop("masses"),
    lambda s: s.update(masses=s["masses"][1:]),
    lambda s: s.update(masses=s["masses"].astype(np.float32)),
    lambda s: s.update(masses=s["masses"].tolist()),
    *(lambda s, mass=mass: s["masses"].__setitem__(3, mass) for mass in (-1.0, np.nan, np.inf)),
    lambda s: s["masses"].__setitem__(35, 1.0),  # where nothing was written
    *(lambda s, highest=highest: s.update(highest=np.array(highest)) for highest in (np.inf, -1.0)),
    lambda s: s.update(batches=np.array(-5)),
    lambda s: s["reach"].__setitem__((1, 0), 31),  # not written yet
    lambda s: s["reach"].__setitem__((0, 0), -1),
    lambda s: s["reach"].__setitem__((0, 1), 11),  # a floor above what was caught
    lambda s: s["reach"].__setitem__((0, 0), 0),  # more tickets than a lane has
    lambda s: s.update(reach=s["reach"][:, :1]),
]


@pytest.fixture
def half_filled() -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(SCALAR, 40, lanes=2) as made:
        write(made, 30, 0)
        write(made, 10, 1)
        yield made


KIND = "state: expected the state of a sampler with the"
PLAIN = {"prioritized": Prioritized()}
OTHERS = [  # options of the sampler, and of the one whose state it is given
    (PLAIN, {"prioritized": Prioritized(alpha=0.5)}, f"{KIND} exponents"),
    (PLAIN | {"sequence": Sequence(5)}, PLAIN, f"{KIND} window"),
    (PLAIN | {"n_step": 3}, PLAIN, f"{KIND} window"),
    (PLAIN, {}, "state: expected exponents as float64 (2,), got nothing"),
]


def check_state_refused(sampler, state, error: type[Exception], says: str) -> None:
    before = sampler.state_dict()
    check_refused(lambda: sampler.load_state_dict(state), error, says)
    assert unchanged(sampler, before)


def test_refuses_states_and_changes_nothing(half_filled):
    for options, others, says in OTHERS:
        sampler, other = (half_filled.sampler(8, min_size=1, seed=0, **kind) for kind in (options, others))
        if others:
            other.update_priorities(other.sample().index, np.full(8, 5.0))
        check_state_refused(sampler, other.state_dict(), ValueError, says)
    check_state_refused(sampler, None, TypeError, "state: ")
    for change in HOSTILE:
        state = sampler.state_dict()
        change(state)
        check_state_refused(sampler, state, ValueError, "state: ")


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
