"""Mixtures of replays, or of parts of one: shares, empty replays, limiters, priorities and states."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from mapped import Mapped
from meanwhile import soon
from refused import check_refused

import marlcore as mc
from marlcore.errors import TimedOut, UsedByTwoThreads
from marlcore.replay.rate_limiter import SampleGate

SPEC = mc.TransitionSpec(mc.Field((2,)), mc.Field((), "int64"), extras={"frame": mc.Field((64,), "uint8")})
PARTS = [range(1), range(1, 4), range(4, 6)]
LANES = range(6)
THIRDS = [0.5, 0.25, 0.25]


def write(replay: mc.ReplayBuffer, lane: int, rows: int, base: int = 0, **options: Any) -> None:
    """Writes episodes of ten; row t holds the action base + t."""
    with replay.writer(lane, **options) as writer:
        for t in range(rows):
            frame = np.full(64, (lane + t) % 256, np.uint8)
            writer.add(np.float32([lane, t]), base + t, 0.5, terminated=t % 10 == 9, frame=frame)


class Sources:
    """The sources of mixtures: three replays of 1, 2 and 3 lanes, or three parts of one replay."""

    def __init__(self, parts: bool) -> None:
        self.lanes = PARTS if parts else [range(1), range(2), range(3)]
        self.options: dict[str, Any] = {"lanes": PARTS} if parts else {}
        if parts:
            self.replays = [mc.ReplayBuffer.create(SPEC, 600, lanes=6)] * 3
        else:
            self.replays = [mc.ReplayBuffer.create(SPEC, 1000, lanes=len(lanes)) for lanes in self.lanes]

    def fill(self, *sources: int, rows: int = 90) -> None:
        for i in sources:
            for lane in self.lanes[i]:
                write(self.replays[i], lane, rows, 10_000 * i)

    def mixture(self, fractions: Any = THIRDS, batch_size: int = 64, **options: Any) -> mc.Mixture:
        return mc.Mixture(self.replays, fractions, batch_size, **self.options, **options)

    def close(self) -> None:
        for replay in self.replays:
            replay.close()


@pytest.fixture(params=["replays", "parts"])
def sources(request: pytest.FixtureRequest) -> Iterator[Sources]:
    made = Sources(request.param == "parts")
    yield made
    made.close()


@pytest.fixture
def replays() -> Iterator[list[mc.ReplayBuffer]]:
    """Two replays; only the first one is filled."""
    with mc.ReplayBuffer.create(SPEC, 1000) as first, mc.ReplayBuffer.create(SPEC, 1000, lanes=2) as second:
        write(first, 0, 200)
        yield [first, second]


@pytest.fixture
def pair(replays: list[mc.ReplayBuffer]) -> list[mc.ReplayBuffer]:
    """Two filled replays."""
    for lane in range(2):
        write(replays[1], lane, 200)
    return replays


def counts(batch: Any, sources: int = 2) -> list[int]:
    return np.bincount(batch.source, minlength=sources).tolist()


def test_each_row_says_which_source_it_is_from(sources):
    sources.fill(0, 1, 2)
    mixture = sources.mixture([0.25, 0.25, 0.5], stack=2, seed=1)
    lanes = np.array([len(lanes) for lanes in sources.lanes])
    first = np.array([lanes.start for lanes in sources.lanes])
    for _ in range(20):
        batch = mixture.sample()
        assert batch.source.dtype == np.int64 and batch.source.shape == (64,)
        assert (batch.action // 10_000 == batch.source).all() and (batch.index % 3 == batch.source).all()
        ticket, lane = np.divmod(batch.index // 3, lanes[batch.source])
        assert (batch.action % 10_000 == ticket).all() and (batch.obs[:, -1, 1] == ticket).all()
        lane += first[batch.source]
        assert (batch.obs[:, -1, 0] == lane).all() and (batch.extras["frame"][:, 0] == (lane + ticket) % 256).all()
        assert (batch.weight == 1).all()


def test_a_source_is_left_out_until_it_has_rows(sources):
    """The other sources give its share, in proportion to their own."""
    mixture = sources.mixture([0.5, 0.125, 0.375], seed=0)
    assert not mixture.can_sample()
    each = "; ".join([r".*marlcore-replay-.*: expected at least 1 transitions, got 0"] * 3)
    for error, timeout in ((mc.NotEnoughData, None), (TimedOut, 0.05)):
        with pytest.raises(error, match=f"^no replay has a row to draw: {each}$"):
            mixture.sample(timeout=timeout)
    sources.fill(1)
    assert mixture.can_sample() and counts(mixture.sample(timeout=0.0), 3) == [0, 64, 0]
    sources.fill(2)
    assert counts(mixture.sample(), 3) == [0, 16, 48]
    assert [stats.drawn for stats in mixture.stats] == [0, 80, 48]
    sources.fill(0)
    for _ in range(3):
        assert counts(mixture.sample(), 3) == [32, 8, 24]


@pytest.mark.parametrize(
    ("fractions", "batch_size"), [([1 / 3, 2 / 3], 256), ([0.5, 0.5], 1), ([0.1, 0.9], 7), ([0.0, 1.0], 5)]
)
def test_shares_are_exact_in_the_long_run(pair, fractions, batch_size):
    """After every batch, each source has given its fraction of all rows, to within one row."""
    mixture, drawn = mc.Mixture(pair, fractions, batch_size, seed=1), np.zeros(2)
    for batches in range(1, 301):
        drawn += counts(mixture.sample())
        assert (abs(drawn - batches * batch_size * np.array(fractions)) < 1).all()


def test_a_replay_is_drawn_from_once_it_holds_its_minimum(replays):
    """A replay with the fraction 0 is never drawn from."""
    mixture, other = (mc.Mixture(replays, shares, 8, seed=0, min_size=20) for shares in ([0.5, 0.5], [0.0, 1.0]))
    for lane in range(2):
        assert counts(mixture.sample()) == [8, 0] and not other.can_sample()
        with pytest.raises(mc.NotEnoughData):
            other.sample()
        write(replays[1], lane, 10)
    assert counts(mixture.sample()) == [4, 4] and counts(other.sample()) == [0, 8]


@pytest.mark.parametrize("prioritized", [None, mc.Prioritized()])
@pytest.mark.parametrize("lanes", PARTS)
def test_a_part_draws_from_its_lanes_alone(lanes, prioritized):
    with mc.ReplayBuffer.create(SPEC, 600, lanes=6) as replay:
        for lane in LANES:
            write(replay, lane, 130, 1000 * lane)  # each lane is lapped once
        sampler = replay.sampler(256, n_step=2, seed=0, prioritized=prioritized, lanes=lanes)
        drawn = set()
        for _ in range(30):
            batch = sampler.sample()
            lane, t = np.divmod(batch.action, 1000)
            assert (batch.obs == np.stack([lane, t], 1)).all()
            assert (batch.extras["frame"] == ((lane + t) % 256)[:, None]).all()
            drawn |= set(zip(lane.tolist(), t.tolist(), strict=True))
            if prioritized is not None:
                sampler.update_priorities(batch.index, np.ones(256))
        assert {lane for lane, _ in drawn} == set(lanes)
        assert {(lane, t) for lane in lanes for t in range(31, 128)} <= drawn and min(t for _, t in drawn) >= 30


def limited(min_size: int = 8, tolerance: float = 8.0) -> mc.ReplayBuffer:
    return mc.ReplayBuffer.create(SPEC, 100, limiter=mc.RateLimiter(1.0, min_size, tolerance))


@pytest.mark.parametrize("fractions", [[0.5, 0.5], [0.01, 0.99]])
def test_a_limited_replays_share_goes_to_no_other(replays, fractions):
    with limited(tolerance=16.0) as replay:
        mixture = mc.Mixture([replay, replays[0]], fractions, 8, seed=0)
        write(replay, 0, 7)
        for error, timeout in ((mc.NotEnoughData, None), (TimedOut, 0.05)) * 2:
            assert not mixture.can_sample()
            with pytest.raises(error, match=r"the limiter expects at least 8 transitions inserted, got 7$"):
                mixture.sample(timeout=timeout)
        assert [stats.drawn for stats in mixture.stats] == [0, 0]
        drawn = np.zeros(2)
        with soon(write, replay, 0, 1):
            for batches, timeout in enumerate([60, None], 1):
                drawn += counts(mixture.sample(timeout=timeout))
                assert (abs(drawn - 8 * batches * np.array(fractions)) < 1).all()


def test_a_refused_share_limits_no_replay(replays):
    """A later replay may refuse: it has no limiter, or its limiter is too narrow."""
    with limited(tolerance=100.0) as wide, limited() as narrow:
        write(wide, 0, 8)
        for other, says in ((replays[0], "a replay with a limiter"), (narrow, "at least batch_size / ")):
            mixture = mc.Mixture([wide, other], [1.0, 0.0], 8)
            check_refused(partial(mixture.limit_to, 0.1), ValueError, f"limit_to: expected {says}")
            before = Mapped(wide).sampled
            assert len(mixture.sample()) == Mapped(wide).sampled - before == 8


def test_a_batch_that_fails_leaves_no_trace(replays, monkeypatch):
    def fails(*args):
        raise mc.MarlcoreError("writers overwrote every draw")

    with limited() as replay:
        write(replay, 0, 8)
        mixture = mc.Mixture(
            [replay, replays[0]], [0.3, 0.7], 8, seed=0, prioritized=[None, mc.Prioritized(beta_steps=5)]
        )
        with monkeypatch.context() as patch, pytest.raises(mc.MarlcoreError, match="writers overwrote every draw"):
            patch.setattr(mixture.samplers[1]._rows, "fill", fails)
            mixture.sample()
        assert [stats.drawn for stats in mixture.stats] == [0, 0] and Mapped(replay).sampled == 0
        assert mixture.state_dict()["1.batches"] == 0
        assert counts(mixture.sample()) == [2, 6]


def test_a_limited_replay_short_of_data_sets_its_writers_free(replays):
    with limited(2, 8.0) as replay:
        mixture = mc.Mixture([replay, replays[0]], [0.5, 0.5], 8, seed=0, min_size=20)
        for expected in ([0, 8], [4, 4]):
            write(replay, 0, 10, timeout=0.0)
            assert counts(mixture.sample()) == expected
        assert not mc.Mixture([replay, replays[1]], [0.0, 1.0], 8).can_sample()  # for data of the other one
        with pytest.raises(TimedOut, match="no sampler made room"):
            write(replay, 0, 10, timeout=0.0)


def test_carried_fractions_of_small_shares_are_whole_rows():
    """In the eighth batch some shares are negative, and the other shares' integers sum to more than the batch."""
    with ExitStack() as open_replays:
        replays = [open_replays.enter_context(mc.ReplayBuffer.create(SPEC, 20)) for _ in range(5)]
        for replay in replays:
            write(replay, 0, 20)
        fractions = np.array([10, 1, 26, 1, 26]) / 64
        mixture = mc.Mixture(replays, fractions, 4, seed=0)
        drawn = sum(np.array(counts(mixture.sample(), 5)) for _ in range(64))
        assert (abs(drawn - 4 * 64 * fractions) < 1).all()
        again = mc.Mixture(replays, fractions, 4, seed=1)
        again.load_state_dict(mixture.state_dict())
        assert (again.sample().index == mixture.sample().index).all()


LIMITER = mc.RateLimiter(samples_per_insert=2.0, min_size=20, tolerance=64.0, lead=0.0)


@pytest.fixture
def parted() -> Iterator[mc.ReplayBuffer]:
    with mc.ReplayBuffer.create(SPEC, 600, lanes=6, limiter=LIMITER) as made:
        yield made


def fills(replay: mc.ReplayBuffer, lane: int) -> int:
    """Returns how many rows fit before the limiter stops the lane's writer."""
    before = len(replay)
    with pytest.raises(TimedOut):
        write(replay, lane, 1000, timeout=0)
    return len(replay) - before


def test_one_limiter_counts_all_parts_together(parted, monkeypatch):
    """While other parts give its share, an empty part never, even briefly, lets the writers exceed the limit."""
    asked: list[SampleGate] = []
    monkeypatch.setattr(SampleGate, "starve", asked.append)
    mixture = mc.Mixture([parted] * 3, [0.25, 0.5, 0.25], 16, seed=1, lanes=PARTS)
    assert fills(parted, 1) == 20 + 64 / 2
    for looks in (False, True, True, False):
        assert mixture.due
        assert not looks or mixture.can_sample()
        assert counts(mixture.sample(), 3) == [0, 16, 0]
        assert fills(parted, 2) == 16 / 2
    assert fills(parted, 3) == 0
    drawn = 0
    while mixture.can_sample():
        assert len(mixture.sample()) == 16
        drawn += 1
    assert drawn == 4 and not mixture.due and not asked


def test_a_mixture_that_can_draw_nothing_sets_the_writers_free(parted):
    mixture = mc.Mixture([parted] * 2, [0.5, 0.5], 16, lanes=[range(1), range(1, 2)])
    assert fills(parted, 2) == 52
    assert not mixture.can_sample()
    write(parted, 2, 30, timeout=0)
    write(parted, 1, 5, timeout=0)
    assert len(mixture.sample()) == 16
    assert fills(parted, 2) == 0


def test_parts_beside_another_replay_have_one_limiter(parted, replays):
    """Writers may exceed the limit only if all parts of the replay are empty."""
    mixture = mc.Mixture([parted, parted, replays[0]], [0.25, 0.5, 0.25], 16, seed=1, lanes=[*PARTS[:2], None])
    assert fills(parted, 2) == 20 + 64 / 2
    assert mixture.can_sample() and counts(mixture.sample(), 3) == [0, 11, 5]
    assert fills(parted, 2) == 5
    empty = mc.Mixture([parted, parted, replays[0]], THIRDS, 16, lanes=[range(1), range(5, 6), None])
    assert counts(empty.sample(), 3) == [0, 0, 16]
    write(parted, 2, 30, timeout=0)


def test_rows_drawn_for_an_empty_replay_are_weighed_too(replays):
    """All rows of a batch are weighed together, and the batch counts once towards beta_steps."""
    prioritized = mc.Prioritized(alpha=1.0, epsilon=0.0, beta=0.0, beta_steps=10)
    mixture = mc.Mixture(replays, [0.5, 0.5], 64, seed=0, prioritized=prioritized)
    given = {}
    for batches in range(15):
        batch = mixture.sample()
        mass = np.array([given.get(index, 1.0) for index in batch.index.tolist()])
        if batches:  # the first batch's masses are equal
            np.testing.assert_allclose(batch.weight, (mass.min() / mass) ** min(1.0, batches / 10), rtol=1e-6)
        new = 2.0 ** (batch.index // 2 % 8)
        given.update(zip(batch.index.tolist(), new.tolist(), strict=True))
        mixture.update_priorities(batch.index, new)


def test_priorities_go_back_to_the_replay_that_a_row_came_from(pair):
    """A weight is divided by the largest weight among its own replay's rows."""
    mixture = mc.Mixture(pair, [0.5, 0.5], 64, seed=2, prioritized=mc.Prioritized(alpha=1.0, epsilon=0.0, beta=0.5))
    given = [{}, {}]
    for _ in range(300):  # in which every row is drawn
        batch = mixture.sample()
        priority = 1.0 + batch.action % 5 + 100 * batch.source
        for source, index, p in zip(batch.source.tolist(), batch.index.tolist(), priority.tolist(), strict=True):
            given[source][index] = p
        mixture.update_priorities(batch.index, priority)
    batch = mixture.sample()
    for source in (0, 1):
        own = batch.source == source
        p = np.array([given[source][index] for index in batch.index[own].tolist()])
        assert np.allclose(batch.weight[own], (p.min() / p) ** 0.5)
    for _ in range(60):
        # Of the first replay only the rows whose action is 7 keep a priority, of the second those with 13.
        mixture.update_priorities(batch.index, (batch.action == np.where(batch.source == 0, 7, 13)).astype(float))
        batch = mixture.sample()
    assert set(zip(batch.source.tolist(), batch.action.tolist(), strict=True)) == {(0, 7), (1, 13)}
    assert [stats.ignored for stats in mixture.stats] == [0, 0]


def test_a_mixture_and_its_samplers_serve_one_thread_together(pair):
    mixture = mc.Mixture(pair, [0.5, 0.5], 8)
    mixture._inside[-1] = None  # another thread is in the middle of a call
    check_refused(mixture.samplers[1].sample, UsedByTwoThreads, "Sampler: expected one thread at a time")


def states_of(mixture: mc.Mixture) -> dict[str, Any]:
    return {name: array.tolist() for name, array in mixture.state_dict().items()}


@pytest.mark.parametrize("bad", [np.nan, 1e200])
def test_a_bad_priority_changes_nothing_in_any_replay(pair, bad):
    """1e200 is too high for the last replay's alpha alone."""
    mixture = mc.Mixture(pair, [0.5, 0.5], 8, seed=2, prioritized=[mc.Prioritized(), mc.Prioritized(alpha=2.0)])
    batch, before = mixture.sample(), states_of(mixture)
    says = rf"^priority: expected finite numbers of at least 0.*, got {re.escape(str(bad))} in row 7, index"
    with pytest.raises(ValueError, match=says):
        mixture.update_priorities(batch.index, [5.0] * 7 + [bad])
    assert states_of(mixture) == before


def test_sequences_are_mixed_and_one_seed_gives_one_result(sources):
    sources.fill(0, 1, 2)
    mixtures = [sources.mixture(seed=5, n_step=2, sequence=mc.Sequence(6, burn_in=2)) for _ in range(2)]
    for _ in range(5):
        first, second = (mixture.sample() for mixture in mixtures)
        assert first.action.shape == first.mask.shape == (64, 6)
        real = first.valid[..., -1]
        assert (first.action[real] // 10_000 == np.repeat(first.source, 6).reshape(64, 6)[real]).all()
        assert first.index.tolist() == second.index.tolist()
        assert first.action.tolist() == second.action.tolist()


def test_a_mixture_continues_from_its_state(sources, tmp_path):
    """The state, loaded from a saved replay, includes the carried fractions of rows."""
    sources.fill(0, 1, 2)
    options = {"prioritized": [mc.Prioritized(beta_steps=9), None, mc.Prioritized()]}
    mixture, other = (sources.mixture([0.3, 0.1, 0.6], 7, seed=seed, **options) for seed in (1, 2))
    for _ in range(4):
        batch = mixture.sample()
        assert (batch.weight[batch.source == 1] == 1).all()
        mixture.update_priorities(batch.index, batch.action % 5)  # passes over the uniform one
    assert mixture.samplers[2].stats.ignored == 0
    sources.replays[0].save(tmp_path / "with", mixture)
    with mc.ReplayBuffer.load(tmp_path / "with") as saved:
        other.load_state_dict(saved.sampler_state)
    assert states_of(other) == states_of(mixture)
    for _ in range(10):
        ours, theirs = mixture.sample(), other.sample()
        assert ours.index.tolist() == theirs.index.tolist()
        assert ours.weight.tolist() == theirs.weight.tolist()


OWED = "state: expected owed as float64 (2,)"
BAD_STATES = [
    ("owed", None, OWED),
    ("owed", np.array([9.0, -9.0]), OWED),  # more than a row
    ("owed", np.array([0.5, 0.5]), OWED),  # whose sum is not 0
    ("1.generator", None, "replay 1: state: expected generator as uint64 (4,)"),
    ("1.masses", np.zeros(3), "replay 1: state: expected masses as float64"),
]


def test_a_bad_state_changes_nothing_in_any_replay(pair):
    mixture, other = (mc.Mixture(pair, [0.5, 0.5], 7, seed=s, prioritized=mc.Prioritized()) for s in (1, 2))
    mixture.sample()
    other.sample()
    before, state = states_of(mixture), other.state_dict()
    for name, value, says in BAD_STATES:
        check_refused(partial(mixture.load_state_dict, state | {name: value}), ValueError, says)
        assert states_of(mixture) == before
