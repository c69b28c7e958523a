"""Mixtures: shares, what happens while a replay is empty, and where priorities go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from mapped import Mapped
from meanwhile import soon

from marlcore import (
    Field,
    LayoutMismatch,
    MarlcoreError,
    Mixture,
    NotEnoughData,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    Sequence,
    TransitionSpec,
)
from marlcore.errors import TimedOut

SPEC = TransitionSpec(Field((2,)), Field((), "int64"))
pytestmark = pytest.mark.long


@pytest.fixture
def replays() -> Iterator[list[ReplayBuffer]]:
    made = [ReplayBuffer.create(SPEC, 1000, lanes=lanes) for lanes in (1, 2, 3)]
    yield made
    for replay in made:
        replay.close()


@pytest.fixture
def pair(replays: list[ReplayBuffer]) -> list[ReplayBuffer]:
    """Two of them, filled alike."""
    for replay in replays[:2]:
        fill(replay, 0)
    return replays[:2]


def fill(replay: ReplayBuffer, base: int, rows: int = 200) -> None:
    """Row t of lane l holds base + t as its action, and base + l in its observation."""
    for lane in range(replay.lanes):
        with replay.writer(lane) as writer:
            for t in range(rows):
                writer.add(np.full(2, base + lane, np.float32), base + t, 0.5, terminated=t % 10 == 9)


def test_each_row_says_which_replay_it_is_from(replays):
    for i, replay in enumerate(replays):
        fill(replay, 10_000 * i)
    mixture = Mixture(replays, [0.25, 0.25, 0.5], 64, stack=2, seed=1)
    for _ in range(20):
        batch = mixture.sample()
        assert batch.source.dtype == np.int64 and batch.source.shape == (64,)
        assert (batch.action // 10_000 == batch.source).all()
        own = batch.index // 3
        lanes = np.array([replay.lanes for replay in replays])[batch.source]
        assert (batch.index % 3 == batch.source).all()
        assert (own // lanes == batch.action % 10_000).all()
        assert (batch.obs[:, -1, 0] == batch.source * 10_000 + own % lanes).all()
        assert (batch.weight == 1).all()
        assert batch.torch().source.tolist() == batch.source.tolist()


@pytest.mark.parametrize(
    ("fractions", "batch_size"), [([1 / 3, 2 / 3], 256), ([0.5, 0.5], 1), ([0.1, 0.9], 7), ([0.0, 1.0], 5)]
)
def test_shares_are_exact_in_the_long_run(pair, fractions, batch_size):
    """In the long run the shares are exact, and no batch is a row off."""
    mixture = Mixture(pair, fractions, batch_size, seed=1)
    drawn = np.zeros(2)
    for batches in range(1, 301):
        counts = np.bincount(mixture.sample().source, minlength=2)
        drawn += counts
        assert counts.sum() == batch_size
        assert (abs(drawn - batches * batch_size * np.array(fractions)) < 1).all()


def test_the_others_give_an_empty_replays_rows(replays):
    fill(replays[1], 0)
    fill(replays[2], 0)
    mixture = Mixture(replays, [0.5, 0.125, 0.375], 64, seed=0)
    assert np.bincount(mixture.sample().source, minlength=3).tolist() == [0, 16, 48]
    fill(replays[0], 0)
    for _ in range(3):
        assert np.bincount(mixture.sample().source, minlength=3).tolist() == [32, 8, 24]


def test_a_replay_is_drawn_from_once_it_holds_its_minimum(replays):
    fill(replays[0], 0, 50)
    fill(replays[1], 0, 5)
    mixture = Mixture(replays[:2], [0.5, 0.5], 8, seed=0, min_size=20)
    assert mixture.sample().source.tolist() == [0] * 8
    fill(replays[1], 0, 5)
    assert np.bincount(mixture.sample().source).tolist() == [4, 4]


def test_with_nothing_to_draw_from_it_says_so(replays):
    mixture = Mixture(replays, [0.5, 0.25, 0.25], 8)
    assert not mixture.can_sample()
    each = "; ".join([r".*marlcore-replay-.*: expected at least 1 transitions, got 0"] * 3)
    with pytest.raises(NotEnoughData, match=f"^no replay has anything to draw from: {each}$"):
        mixture.sample()
    with pytest.raises(TimedOut, match=f"^no replay has anything to draw from: {each}$"):
        mixture.sample(timeout=0.05)
    fill(replays[2], 0)
    assert mixture.can_sample()
    assert len(mixture.sample(timeout=0.0)) == 8


def test_rows_drawn_for_an_empty_replay_are_weighed_too(replays):
    """Rows drawn for an empty replay are weighed with the others and are one batch of beta steps."""
    fill(replays[0], 0, 60)
    prioritized = Prioritized(alpha=1.0, epsilon=0.0, beta=0.0, beta_steps=10)
    mixture = Mixture(replays[:2], [0.5, 0.5], 64, seed=0, prioritized=prioritized)
    given = {}
    for batches in range(15):
        batch = mixture.sample()
        mass = np.array([given.get(index, 1.0) for index in batch.index.tolist()])
        if batches:  # the first batch's masses are equal
            np.testing.assert_allclose(batch.weight, (mass.min() / mass) ** min(1.0, batches / 10), rtol=1e-6)
        new = 2.0 ** (batch.index // 2 % 8)
        given.update(zip(batch.index.tolist(), new.tolist(), strict=True))
        mixture.update_priorities(batch.index, new)


def limited(min_size=8, tolerance=8.0, ratio=1.0):
    return ReplayBuffer.create(SPEC, 100, limiter=RateLimiter(ratio, min_size, tolerance))


def add(writer, rows):
    for t in range(rows):
        writer.add(np.zeros(2, np.float32), t, 0.0)


@pytest.mark.parametrize("fractions", [[0.5, 0.5], [0.01, 0.99]])
def test_a_limited_replays_share_goes_to_nobody(replays, fractions):
    """A limiter is waited for and its replay's share goes to nobody."""
    fill(replays[0], 0)
    with limited(tolerance=16.0) as replay, replay.writer() as writer:
        mixture = Mixture([replay, replays[0]], fractions, 8, seed=0)
        add(writer, 7)
        for _ in range(2):
            assert not mixture.can_sample()
            with pytest.raises(NotEnoughData, match=r"the limiter expects at least 8 transitions inserted, got 7$"):
                mixture.sample()
            with pytest.raises(TimedOut, match=r"the limiter expects at least 8 transitions inserted, got 7$"):
                mixture.sample(timeout=0.05)
        assert [sampler.stats.drawn for sampler in mixture.samplers] == [0, 0]
        drawn = np.zeros(2)
        with soon(add, writer, 1):
            for batches, timeout in enumerate([60, None], 1):
                drawn += np.bincount(mixture.sample(timeout).source, minlength=2)
                assert (abs(drawn - 8 * batches * np.array(fractions)) < 1).all()


def test_rows_that_are_not_returned_are_not_counted(replays):
    """One replay's limiter allows a batch; the other replay is empty, so that two rounds fill it."""
    with limited() as replay, replay.writer() as writer:
        mixture = Mixture([replay, replays[0]], [0.5, 0.5], 8, seed=0)
        add(writer, 8)
        assert mixture.can_sample()
        assert mixture.sample().source.tolist() == [0] * 8
        assert not mixture.can_sample()
        for _ in range(3):
            with pytest.raises(NotEnoughData, match="the limiter expects"):
                mixture.sample()
        assert mixture.samplers[0].stats.drawn == Mapped(replay).sampled == 8


def test_a_batch_that_fails_leaves_no_trace(replays, monkeypatch):
    fill(replays[0], 0)
    with limited() as replay, replay.writer() as writer:
        add(writer, 8)
        mixture = Mixture([replay, replays[0]], [0.3, 0.7], 8, seed=0, prioritized=[None, Prioritized(beta_steps=5)])

        def fails(*args):
            raise MarlcoreError("writers overwrote every draw")

        before = [sampler.state_dict().get("batches") for sampler in mixture.samplers]
        with monkeypatch.context() as patch, pytest.raises(MarlcoreError, match="writers overwrote every draw"):
            patch.setattr(mixture.samplers[1], "_fill", fails)
            mixture.sample()
        assert [sampler.stats.drawn for sampler in mixture.samplers] == [0, 0]
        assert Mapped(replay).sampled == 0
        assert [sampler.state_dict().get("batches") for sampler in mixture.samplers] == before
        assert np.bincount(mixture.sample().source).tolist() == [2, 6]


def test_waiting_for_data_does_not_move_the_shares(replays):
    """The shares of a row that a wait ends with are those that it began with, however often it looked."""
    mixture = Mixture(replays[:2], [0.3, 0.7], 1, seed=0)
    for _ in range(5):
        with pytest.raises(TimedOut):
            mixture.sample(timeout=0.0)
    for replay in replays[:2]:
        fill(replay, 0)
    plain = Mixture(replays[:2], [0.3, 0.7], 1, seed=0)
    assert [mixture.sample().source[0] for _ in range(10)] == [plain.sample().source[0] for _ in range(10)]


def test_a_limited_replay_short_of_data_lets_writers_go_on(replays):
    fill(replays[0], 0)
    with limited(2, 8.0) as replay, replay.writer(timeout=0.0) as writer:
        mixture = Mixture([replay, replays[0]], [0.5, 0.5], 8, seed=0, min_size=20)
        add(writer, 10)
        with pytest.raises(TimedOut, match="no sampler made room"):
            add(writer, 1)
        assert mixture.sample().source.tolist() == [1] * 8
        add(writer, 10)
        assert np.bincount(mixture.sample().source).tolist() == [4, 4]
        with pytest.raises(TimedOut, match="no sampler made room"):
            add(writer, 10)


def test_a_replay_with_no_share_is_never_drawn_from(replays):
    fill(replays[0], 0)
    mixture = Mixture(replays[:2], [0.0, 1.0], 8)
    assert not mixture.can_sample()
    with pytest.raises(NotEnoughData):
        mixture.sample()


def test_priorities_go_back_to_the_replay_that_a_row_came_from(replays):
    for replay in replays[:2]:
        fill(replay, 0, 100)
    mixture = Mixture(replays[:2], [0.5, 0.5], 64, seed=2, prioritized=Prioritized(alpha=1.0, epsilon=0.0, beta=1.0))
    for _ in range(60):  # now every row was drawn
        batch = mixture.sample()
        # Of the first replay only the rows whose action is 7 keep a priority, of the second those with 13.
        kept = batch.action == np.where(batch.source == 0, 7, 13)
        mixture.update_priorities(batch.index, kept.astype(float))
    batch = mixture.sample()
    assert set(zip(batch.source.tolist(), batch.action.tolist(), strict=True)) == {(0, 7), (1, 13)}
    assert (batch.weight == 1).all()
    assert [sampler.stats.ignored for sampler in mixture.samplers] == [0, 0]


def test_weights_are_divided_by_their_replays_largest(replays):
    for replay in replays[:2]:
        fill(replay, 0, 100)
    mixture = Mixture(replays[:2], [0.5, 0.5], 64, seed=2, prioritized=Prioritized(alpha=1.0, epsilon=0.0, beta=0.5))
    given = [{}, {}]
    for _ in range(60):
        batch = mixture.sample()
        priority = 1.0 + batch.action % 5 + 100 * batch.source
        for source, index, p in zip(batch.source.tolist(), batch.index.tolist(), priority.tolist(), strict=True):
            given[source][index] = p
        mixture.update_priorities(batch.index, priority)
    batch = mixture.sample()
    for source in (0, 1):
        mine = batch.source == source
        p = np.array([given[source][index] for index in batch.index[mine].tolist()])
        assert np.allclose(batch.weight[mine], (p.min() / p) ** 0.5)


def test_updates_pass_over_uniform_replays(pair):
    mixture = Mixture(pair, [0.5, 0.5], 64, seed=2, prioritized=[None, Prioritized()])
    batch = mixture.sample()
    assert (batch.weight[batch.source == 0] == 1).all()
    mixture.update_priorities(batch.index, np.ones(64))
    assert mixture.samplers[1].stats.ignored == 0


def test_a_bad_priority_changes_nothing_in_any_replay(pair):
    mixture = Mixture(pair, [0.5, 0.5], 8, seed=2, prioritized=Prioritized())
    batch = mixture.sample()
    before = [sampler.state_dict()["masses"] for sampler in mixture.samplers]
    priority = np.full(8, 5.0)
    priority[7] = np.nan
    with pytest.raises(ValueError, match=r"^priority: expected finite numbers of at least 0, got nan in row 7, index"):
        mixture.update_priorities(batch.index, priority)
    for sampler, masses in zip(mixture.samplers, before, strict=True):
        assert (sampler.state_dict()["masses"] == masses).all()


def test_sequences_are_mixed_too_and_one_seed_gives_one_result(replays):
    for i, replay in enumerate(replays[:2]):
        fill(replay, 10_000 * i)
    batches = []
    for _ in range(2):
        mixture = Mixture(replays[:2], [0.5, 0.5], 16, seed=5, n_step=2, sequence=Sequence(6, burn_in=2))
        batches.append([mixture.sample() for _ in range(5)])
    for first, second in zip(*batches, strict=True):
        assert first.action.shape == (16, 6) and first.mask.shape == (16, 6)
        real = first.valid[..., -1]
        assert (first.action[real] // 10_000 == np.repeat(first.source, 6).reshape(16, 6)[real]).all()
        assert first.index.tolist() == second.index.tolist()
        assert first.action.tolist() == second.action.tolist()


@pytest.mark.parametrize(
    ("fractions", "error", "message"),
    [
        ([0.5, 0.6], ValueError, "fractions: expected numbers of at least 0 whose sum is 1, got"),
        ([1.5, -0.5], ValueError, "fractions: expected numbers of at least 0 whose sum is 1, got"),
        ([np.nan, 1.0], ValueError, "fractions: expected numbers of at least 0 whose sum is 1, got"),
        ([1.0], ValueError, "fractions: expected one for each of 2 replays, at least one, got"),
        ([0.5, "x"], TypeError, "fractions: expected numbers, got"),
    ],
)
def test_fractions_that_cannot_be_are_refused(replays, fractions, error, message):
    with pytest.raises(error, match=message):
        Mixture(replays[:2], fractions, 8)


def test_other_arguments_that_cannot_be_are_refused(replays):
    with pytest.raises(ValueError, match=r"^batch_size: expected an integer of at least 1, got 0"):
        Mixture(replays, [0.5, 0.25, 0.25], 0)
    with pytest.raises(ValueError, match=r"^prioritized: expected one for each of 3 replays, got 2"):
        Mixture(replays, [0.5, 0.25, 0.25], 8, prioritized=[None, None])
    with pytest.raises(ValueError, match=r"^fractions: expected one for each of 0 replays, at least one, got \[\]"):
        Mixture([], [], 8)
    with (
        ReplayBuffer.create(TransitionSpec(Field((3,)), Field((), "int64")), 100) as other,
        pytest.raises(LayoutMismatch, match=r"^replays\[1\]: spec obs: expected float32 \(2,\), got float32 \(3,\)$"),
    ):
        Mixture([replays[0], other], [0.5, 0.5], 8)
    with pytest.raises(ValueError, match=r"^min_size: expected an integer of at least 1, got None"):
        Mixture(replays[:1], [1.0], 8, min_size=None)


def test_what_is_no_list_of_replays_is_named(replays):
    with pytest.raises(TypeError, match=r"^replays: expected a list of ReplayBuffers, got <ReplayBuffer .*>$"):
        Mixture(replays[0], [1.0], 8)
    with pytest.raises(TypeError, match=r"^replays\[1\]: expected a ReplayBuffer, got <.*Sampler .*>$"):
        Mixture([replays[0], replays[1].sampler(8)], [0.5, 0.5], 8)


def test_stats_are_those_of_each_replays_sampler(replays):
    fill(replays[0], 0)
    mixture = Mixture(replays, [0.5, 0.25, 0.25], 8)
    mixture.sample()
    assert [stats.drawn for stats in mixture.stats] == [8, 0, 0]


def states_of(mixture):
    return {name: array.tolist() for name, array in mixture.state_dict().items()}


def test_a_mixture_goes_on_from_its_state(replays, tmp_path):
    """The shares of a row too; also from a file that a replay was saved to with it."""
    for replay in replays:
        fill(replay, 0)
    options = {"prioritized": [Prioritized(beta_steps=9), None, Prioritized()]}
    mixture, other = (Mixture(replays, [0.3, 0.1, 0.6], 7, seed=seed, **options) for seed in (1, 2))
    for _ in range(4):
        batch = mixture.sample()
        mixture.update_priorities(batch.index, batch.action % 5)
    replays[0].save(tmp_path / "with", mixture)
    with ReplayBuffer.load(tmp_path / "with") as saved:
        other.load_state_dict(saved.sampler_state)
    assert states_of(other) == states_of(mixture)
    for _ in range(10):
        ours, theirs = mixture.sample(), other.sample()
        assert ours.index.tolist() == theirs.index.tolist()
        assert ours.weight.tolist() == theirs.weight.tolist()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("owed", None, r"^state: expected owed as float64 \(2,\)"),
        ("owed", np.array([9.0, -9.0]), r"^state: expected owed as float64 \(2,\)"),
        ("owed", np.array([0.5, 0.5]), r"^state: expected owed as float64 \(2,\)"),
        ("1.generator", None, r"^replay 1: state: expected generator as uint64 \(4,\)"),
        ("1.masses", np.zeros(3), r"^replay 1: state: expected masses as float64"),
    ],
)
def test_a_bad_state_changes_nothing_in_any_replay(pair, name, value, message):
    mixture, other = (Mixture(pair, [0.5, 0.5], 7, seed=s, prioritized=Prioritized()) for s in (1, 2))
    mixture.sample()
    other.sample()
    before, state = states_of(mixture), other.state_dict()
    with pytest.raises(ValueError, match=message):
        mixture.load_state_dict(state | {name: value})
    assert states_of(mixture) == before
