"""The limiter keeps a sampler and writers in step, whichever of them starts late, stops, fails or is killed."""

import re
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
from mapped import Mapped
from meanwhile import soon

from marlcore import (
    Field,
    MarlcoreError,
    Mixture,
    NotEnoughData,
    RateLimiter,
    ReplayBuffer,
    SegmentCorrupt,
    TrajectoryQueue,
    TransitionSpec,
)
from marlcore.memory import interrupting_own_waits
from marlcore.replay.rate_limiter import SLOTS

SPEC = TransitionSpec(Field(), Field())
SHARED = TransitionSpec(Field(), Field(), next_obs=True)


def make(samples_per_insert=2.0, min_size=4, tolerance=8.0, capacity=64, lanes=1, spec=SPEC):
    return ReplayBuffer.create(spec, capacity, lanes, limiter=RateLimiter(samples_per_insert, min_size, tolerance))


def fill(writer, rows, **extras):
    for _ in range(rows):
        writer.add(0.0, 0.0, 0.0, **extras)


def rows_until_full(writer, **extras) -> int:
    """Returns how many rows a writer that does not wait may add."""
    for added in range(1000):
        try:
            fill(writer, 1, **extras)
        except TimeoutError:
            return added
    return 1000


@pytest.mark.parametrize("ratio", [Fraction(1, 4), Fraction(1), Fraction(7, 2)])
def test_sampler_and_writer_stay_in_the_band(ratio):
    """Checks every state that two sides can reach, in any order, against the rule written in fractions."""
    batch, rows, min_size = 3, 2, 5
    tolerance = max(Fraction(batch), ratio * rows)
    limiter = RateLimiter(float(ratio), min_size, float(tolerance))
    seen, todo = set(), [(0, 0)]
    while todo:
        state = inserted, sampled = todo.pop()
        if state in seen or inserted > 40:
            continue
        seen.add(state)
        balance = ratio * (inserted - min_size) - sampled
        may_sample = inserted >= min_size and balance - batch >= -tolerance
        may_insert = inserted < min_size or balance + ratio * rows <= tolerance
        assert (limiter.inserts_missing(inserted, sampled, batch) == 0) == may_sample
        assert (limiter.samples_missing(inserted, sampled, rows) == 0) == may_insert
        assert may_sample or may_insert
        assert inserted < min_size or -tolerance <= balance <= tolerance
        todo += [(inserted, sampled + batch)] * may_sample + [(inserted + rows, sampled)] * may_insert
    assert max(inserted for inserted, _ in seen) >= 40


@pytest.mark.parametrize("mixed", [False, True])
def test_a_smaller_share_makes_each_row_count_more(mixed):
    with make() as replay, replay.writer(timeout=0.0) as writer:
        sampler = Mixture([replay], [1.0], 1) if mixed else replay.sampler(1, min_size=1)
        fill(writer, 4)
        sampler.limit_to(0.4)
        for counted in (2, 5, 7):
            sampler.sample()
            assert Mapped(replay).sampled == counted
        assert not sampler.can_sample()  # 7 + 2.5 would lead by more than 8
        sampler.limit_to(1.0)
        assert sampler.can_sample()


@pytest.mark.parametrize("late", [1, 7, 200])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_changing_share_counts_as_of_each_insert(mixed, late):
    """However late batches are drawn, their rows are the ratio times the sum of the shares of all inserts."""

    def share_at(inserts):
        return min(0.001 + inserts / 210, 1.0)

    limiter = RateLimiter(4.0, 10, 10_000.0, lead=0.0)
    with ReplayBuffer.create(SPEC, 1_000, limiter=limiter) as replay, replay.writer() as writer:
        sampler = Mixture([replay], [1.0], 4) if mixed else replay.sampler(4, min_size=1)
        inserted = batches = 0
        sampler.limit_to(lambda ahead: share_at(inserted + ahead))
        while inserted < 210:
            fill(writer, late)
            inserted += late
            while sampler.due:
                sampler.sample()
                batches += 1
        due = sum(map(share_at, range(10, inserted)))
        assert due - 1.5 < batches <= due + 0.5


# With 2 samples an insert, from 4 rows on, within 8: a sampler of batches of 2 "starts" with this min_size, "draws"
# batches, is refused because it "lacks" inserts or, "hungry", rows, and "dies"; a writer "adds" rows, or adds them
# until it is "full"; each with its number.
STORIES = {
    "a sampler waits until min_size was inserted": "starts 1, add 3, lack 4 of 3, add 1, draw 1",
    # balance = 2 * (6 - 4) - sampled >= -8: twelve rows, so six batches of two
    "batches stop at the tolerance below": "starts 1, add 6, draw 6, lack 7 of 6, add 1, draw 1",
    # balance = 2 * (inserted - 4) <= 8: eight rows
    "adds stop at the tolerance above": "starts 1, full 8, draw 2, full 2",
    "a sampler that needs more rows gets them": "starts 20, full 8, hungry, add 12, draw 1, full 0",
    "a dead sampler's hunger sets no writer free": "starts 20, full 8, hungry, add 1, dies, full 0, "
    "starts 20, hungry, add 1",
    "a successor continues the count of its slot": "starts 8, full 8, draw 1, full 1, dies, starts 60, hungry, dies, "
    "starts 1, full 0, draw 1, counted 4, full 1",
}


@pytest.mark.parametrize("story", STORIES)
def test_one_writer_and_one_sampler(story):
    sampler = None
    with make() as replay, replay.writer(timeout=0.0) as writer:
        for verb, *numbers in map(str.split, STORIES[story].split(", ")):
            number = int(numbers[0]) if numbers else 0
            if verb == "add":
                fill(writer, number)
            elif verb == "full":
                assert rows_until_full(writer) == number
            elif verb == "starts":
                sampler = replay.sampler(2, min_size=number)
            elif verb == "dies":
                sampler = None
            elif verb == "counted":
                assert Mapped(replay).sampled == number
            elif verb == "draw":
                for _ in range(number):
                    assert sampler.can_sample() and len(sampler.sample()) == 2
            else:
                assert not sampler.can_sample()
                says = f"expects at least {number} transitions inserted, got {numbers[-1]}" if verb == "lack" else None
                for error, timeout in ((NotEnoughData, None), (TimeoutError, 0.0)):
                    with pytest.raises(error, match=says):
                        sampler.sample(timeout=timeout)


@pytest.mark.parametrize("needs", [{"n_step": 19}, {"n_step": 16, "stack": 4}])
def test_a_sampler_of_long_windows_gets_its_rows(needs):
    """A failed draw lets the writers continue, without a call of can_sample."""
    with make() as replay, replay.writer(timeout=0.0) as writer:
        sampler = replay.sampler(2, **needs)
        assert rows_until_full(writer) == 8
        with pytest.raises(NotEnoughData):
            sampler.sample()
        fill(writer, 12)
        sampler.sample()
        assert rows_until_full(writer) == 0


def test_boundary_rows_are_not_counted():
    with make() as replay, replay.writer(timeout=0.0) as writer:
        for _ in range(8):
            writer.add(0.0, 0.0, 0.0, truncated=True, final_obs=0.0)
        assert rows_until_full(writer) == 0
        assert (Mapped(replay).committed(), Mapped(replay).lanes.inserted()) == (16, 8)


@pytest.mark.parametrize("spec", [SPEC, SHARED], ids=["lanes", "shared lane"])
def test_all_writers_count_together(spec):
    with make(spec=spec, lanes=3) as replay:
        shared, extras = spec is SHARED, {"next_obs": 0.0} if spec is SHARED else {}
        writers = [replay.writer(lane * (not shared), shared=shared, timeout=0.0) for lane in range(3)]
        for writer in writers:
            fill(writer, 2, **extras)
        assert sum(rows_until_full(writer, **extras) for writer in writers) == 2
        for writer in writers:
            writer.close()


def test_lapped_rows_still_count():
    with make(1.0, 1, 4.0, capacity=5) as replay, replay.writer(timeout=0.0) as writer:
        sampler = replay.sampler(2)
        for _ in range(50):
            rows_until_full(writer)
            sampler.sample()
        assert Mapped(replay).lanes.inserted() == 1 + 4 + 2 * 49
        assert len(replay) == 5


def test_slots_of_dead_and_refused_samplers_are_free():
    with make() as replay:
        for _ in range(SLOTS + 1):
            with pytest.raises(ValueError, match="tolerance"):
                replay.sampler(9)
        samplers = [make() for make in (lambda: replay.sampler(1), lambda: Mixture([replay] * 3, [0.5, 0.5, 0.0], 1))
                    for _ in range(SLOTS // 2)]  # fmt: skip
        with pytest.raises(MarlcoreError, match=f"expected at most {SLOTS} samplers"):
            replay.sampler(1)
        for i in (3, -1):
            del samplers[i]
            samplers.append(replay.sampler(1))


def test_damaged_counters_stop_a_writer_and_do_not_make_it_wait():
    with make() as replay, replay.writer() as writer:
        fill(writer, 4)
        Mapped(replay).counters()[:] = 2**62
        with pytest.raises(SegmentCorrupt):
            writer.add(0.0, 0.0, 0.0)
        with pytest.raises(SegmentCorrupt):
            replay.sampler(1).sample(timeout=600)


def after(looks: int) -> Callable[[], None]:
    """A check of waits that ends one after `looks` looks."""

    def check() -> None:
        nonlocal looks
        looks -= 1
        if not looks:
            raise InterruptedError

    return check


@pytest.mark.parametrize("limit", ["limiter", "lane", "max_unread"])
def test_a_writer_that_waits_for_nobody_says_so_once(limit, monkeypatch, caplog):
    monkeypatch.setattr("marlcore.memory.waiting.ALONE_S", 0.0)
    monkeypatch.setattr("marlcore.memory.waiting.WAIT_SLICE_S", 0.001)
    monkeypatch.setattr("marlcore.replay.rate_limiter.BULK_S", 0.0)
    queue = partial(TrajectoryQueue.create, SPEC, 8, max_unread=3 if limit == "max_unread" else None)
    rows = {"limiter": 8, "lane": 8, "max_unread": 3}[limit]
    with make() if limit == "limiter" else queue() as shared, shared.writer() as writer:
        fill(writer, rows)
        for other in (None, shared.sampler if limit == "limiter" else shared.reader):
            caplog.clear()
            end = other and other(4)  # held until the writer has waited
            with interrupting_own_waits(after(5)), pytest.raises(InterruptedError):
                fill(writer, 1)
            assert len(caplog.messages) == (end is None)
            assert end or re.search("a writer waits for .*, and no process has", caplog.text)


@pytest.mark.parametrize("min_size", [4, 20], ids=["draws", "lacks rows"])
def test_a_waiting_writer_wakes_when_a_sampler(no_slices, min_size):
    with make() as replay, replay.writer() as writer:
        fill(writer, 8)
        sampler = replay.sampler(4, min_size=min_size)
        with soon(sampler.sample if min_size == 4 else sampler.can_sample):
            fill(writer, 1)
        assert Mapped(replay).lanes.inserted() == 9


def test_a_waiting_sampler_wakes_when_a_writer_adds(no_slices):
    with make() as replay, replay.writer() as writer:
        fill(writer, 3)
        sampler = replay.sampler(2)
        with soon(fill, writer, 1):
            sampler.sample(timeout=600)
        assert sampler.stats.waited > 0


def test_a_waiting_writer_is_woken_once_for_many_batches(no_slices, monkeypatch):
    """It waits for a quarter of the span between the bounds, 32 of 128 rows, or for a moment."""
    monkeypatch.setattr("marlcore.replay.rate_limiter.BULK_S", 600.0)
    with make(1.0, 4, 64.0) as replay, replay.writer() as writer:
        fill(writer, 68)
        sampler = replay.sampler(4)
        inserted = []

        def draw():
            for _ in range(9):
                time.sleep(0.02)
                inserted.append(Mapped(replay).lanes.inserted())
                sampler.sample()

        with soon(draw):
            writer.add(0.0, 0.0, 0.0)
        assert inserted == [68] * 9


WRITE = """
    import sys
    from marlcore import ReplayBuffer
    replay = ReplayBuffer.attach(sys.argv[1])
    writer = replay.writer(int(sys.argv[2]))
    print("ready", flush=True)
    while True:
        writer.add(0.0, 0.0, 0.0)
"""


@pytest.mark.long
@pytest.mark.parametrize(("ratio", "gates"), [(0.25, True), (1.0, True), (8.0, True), (1.0, False)])
def test_two_writers_and_a_sampler_flat_out_stay_in_the_band(program, ratio, gates):
    """After each batch, W - 1 adds beyond the tolerance are allowed. In the control, writers have no gates."""
    opened = "" if gates else "from seams import without_gates; without_gates()"
    with ReplayBuffer.create(SPEC, 10_000, 2, limiter=RateLimiter(ratio, 100, 64.0)) as replay:
        writers = [program(opened, WRITE, args=[replay.handle.path, lane]) for lane in range(2)]
        for writer in writers:
            assert writer.line() == "ready"
        sampler, mapped, balances = replay.sampler(32, seed=0), Mapped(replay), []
        for drawn in range(1, 1501):
            sampler.sample(timeout=600.0)
            assert mapped.sampled == 32 * drawn
            balances.append(ratio * (mapped.lanes.inserted() - 100) - 32 * drawn)
        assert min(balances) >= -64.0
        assert (max(balances) <= 64.0 + ratio) == gates
        for writer in writers:
            writer.kill()
