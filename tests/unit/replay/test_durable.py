"""Durable replays: every row after the end of all processes, and after that of the machine all below the watermark.

Another boot id stands for a power cut after which the disk had every page; power_cuts.py has disks that had not.
"""

import copy
import errno
import itertools
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from mapped import Mapped
from refused import check_refused, refusals
from seams import another_boot, patch
from victims import at_instruction, die, fork, reap

import marlcore as mc
from marlcore.errors import SegmentCorrupt
from marlcore.memory import File, LaneGeometry, Marks, Recovered, Segment
from marlcore.memory.watermark import PROMISED
from marlcore.transitions import RecordLayout

SPEC = mc.TransitionSpec(mc.Field((3,)), mc.Field((), "int64"))
RARELY = mc.Durable(every_s=3600.0)  # but at the beginning and the end
LANE = 40


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The tests' folder may be on one that keeps nothing: no machine stops here."""
    if "file_system" not in request.node.name:
        patch(monkeypatch, "transitions", check_keeps=lambda directory: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replay.marlcore"


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The machine stopped, and its disk has every page."""
    return lambda: patch(monkeypatch, "memory", **another_boot())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the disk fail from now on."""

    def fail(file: File) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return lambda: monkeypatch.setattr(File, "sync", fail)


def create(path: Path, lanes: int = 1, durable: mc.Durable = RARELY, **options: Any) -> mc.ReplayBuffer:
    return mc.ReplayBuffer.create(SPEC, LANE * lanes, lanes, path=path, durable=durable, **options)


def add(replay: mc.ReplayBuffer, count: int, lane: int = 0) -> None:
    first = Mapped(replay).committed(lane)
    with replay.writer(lane, timeout=0.0) as writer:
        for ticket in range(first, first + count):
            writer.add(np.full(3, ticket, np.float32), ticket, ticket % 7)


def actions(replay: mc.ReplayBuffer, lane: int = 0) -> list[int]:
    """The tickets that a lane holds, as its rows say themselves; each row is whole."""
    mapped = Mapped(replay)
    committed, reserved = mapped.counters(lane).tolist()
    held = mapped.column(0, lane)[np.arange(max(0, reserved - LANE), committed) % LANE]
    action, obs = held[:, 16:24].copy().view(np.int64)[:, 0], held[:, 24:36].copy().view(np.float32)
    assert (obs == action[:, None]).all()
    return action.tolist()


def flush(replay: mc.ReplayBuffer) -> None:
    replay._durability._flushing.flush()


def test_every_row_is_there_after_the_only_process_was_killed(path: Path) -> None:
    def work() -> mc.ReplayBuffer:
        replay = create(path)
        add(replay, 25)
        return replay

    die(work)
    with mc.ReplayBuffer.attach(path) as replay:
        assert actions(replay) == [*range(25)]
        assert replay.recovered is None
        assert replay.durable == RARELY


def test_rows_behind_the_watermark_are_cut_after_the_machine_stopped(path: Path, reboot: Callable[[], None]) -> None:
    def work() -> mc.ReplayBuffer:
        replay = create(path, 2)
        add(replay, 15)
        add(replay, 5, lane=1)
        flush(replay)
        add(replay, 3)
        return replay

    die(work)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert actions(replay) == [*range(15)]
        assert actions(replay, 1) == [*range(5)]
        assert replay.recovered == Recovered(rows=20, cut=3, overwritten=0)
        add(replay, 5)
        assert actions(replay) == [*range(20)]
        with mc.ReplayBuffer.attach(path) as other:
            assert other.recovered is None


def test_rows_whose_place_was_promised_to_others_are_left_out(path: Path, reboot: Callable[[], None]) -> None:
    """The flusher promised ten rows more than the lane had: their places may hold anything."""

    def work() -> mc.ReplayBuffer:
        replay = create(path)
        add(replay, 35)
        flush(replay)
        return replay

    die(work)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        held = actions(replay)
        assert held == [*range(held[0], 35)]
        assert replay.recovered == Recovered(rows=len(held), cut=0, overwritten=held[0])
        assert 0 < held[0] < 25
        assert len(replay) == len(held)
        add(replay, LANE)
        assert actions(replay) == [*range(35, 35 + LANE)]


def test_a_promise_sinks_once_nothing_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in its reach are lost to a power cut. A living writer may have read the higher promise, so it stays."""
    patch(monkeypatch, "memory", _LEAST_AHEAD=1)
    with create(path) as replay:
        add(replay, LANE)
        flush(replay)
        with replay.writer() as writer:
            writer.add(np.zeros(3), 0, 0.0)
            flush(replay)
            assert promised(replay) == LANE + 10
        flush(replay)
        assert promised(replay) == LANE + 2


def promised(replay: mc.ReplayBuffer) -> int:
    return int(replay._durability.marks.newest().lanes[PROMISED, 0])


def test_a_lane_whose_rows_are_all_in_doubt_counts_on(path: Path, reboot: Callable[[], None]) -> None:
    """Its limiter would otherwise wait until as many rows were inserted once more."""

    def work() -> mc.ReplayBuffer:
        replay = create(path, limiter=mc.RateLimiter(0.5, 1, 1e6))
        with replay.writer() as writer:
            for ticket in range(30):
                ends: dict[str, Any] = {"truncated": True, "final_obs": np.zeros(3)} if ticket % 4 == 3 else {}
                writer.add(np.zeros(3), ticket, 0.0, **ends)
        flush(replay)
        add(replay, 3 * LANE)
        return replay

    die(work)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert len(replay) == 0
        assert replay.recovered is not None
        assert (replay.recovered.rows, replay.recovered.overwritten) == (0, 37), "with final observations"
        assert Mapped(replay).lanes.inserted() == 30
        add(replay, 3)
        assert len(replay) == 3
        assert set(replay.sampler(4, min_size=1).sample(timeout=0.0).action.tolist()) <= {37, 38}


def test_a_writer_killed_over_the_newest_row_stops_no_mark(path: Path, reboot: Callable[[], None]) -> None:
    def write(replay: mc.ReplayBuffer, rows: int) -> None:
        with replay.writer() as writer:
            for _ in range(rows):
                writer.add(0.0, 0.0, 0.0, next_obs=0.0)

    def work() -> mc.ReplayBuffer:
        spec = mc.TransitionSpec(mc.Field(), mc.Field(), next_obs=True)
        replay = mc.ReplayBuffer.create(spec, 1, path=path, durable=RARELY)
        write(replay, 5)
        mapped = Mapped(replay)
        begin, _ = mapped.lanes.appender_in_steps(0, mapped.body, 0)
        assert begin() == 5
        flush(replay)
        return replay

    die(work)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert replay.inserted == 5
        write(replay, 1)
        assert replay.inserted == 6


def test_writers_need_no_flusher(path: Path, reboot: Callable[[], None]) -> None:
    """The process that was the flusher died; a writer that laps puts its own promise on disk."""
    with create(path) as replay:
        add(replay, 20)
        replay._durability.close()
        add(replay, 70)
        assert actions(replay) == [*range(50, 90)]
        with mc.ReplayBuffer.attach(path) as heir:
            flush(heir)
        reboot()
        with mc.ReplayBuffer.attach(path) as left:
            assert left.recovered is not None
            assert actions(left) == [*range(90 - len(actions(left)), 90)]


def test_a_named_sampler_and_the_limiter_continue(path: Path, reboot: Callable[[], None]) -> None:
    options: dict[str, Any] = {"prioritized": mc.Prioritized(), "name": "learner"}
    with create(path, limiter=mc.RateLimiter(2.0, 1, 1e6)) as replay:
        add(replay, 30)
        sampler = replay.sampler(8, seed=1, **options)
        for _ in range(3):
            batch = sampler.sample()
            sampler.update_priorities(batch.index, np.arange(8.0))
        state = sampler.state_dict()
        with pytest.raises(mc.LaneBusy, match="the sampler 'learner' is in use"):
            replay.sampler(8, **options)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert Mapped(replay).sampled == 24
        again = replay.sampler(8, seed=2, **options).state_dict()
        assert again.keys() == state.keys()
        for name in state.keys() - {"reach", "masses", "marks"}:
            np.testing.assert_array_equal(again[name], state[name], err_msg=name)
        known = again["reach"][1, 0]
        assert known == 28  # what follows the last two rows is not on disk
        np.testing.assert_array_equal(again["masses"][:known], state["masses"][:known])


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_kept_state_depends_on_no_row_behind_the_watermark(
    path: Path, reboot: Callable[[], None], n_step: int
) -> None:
    """Rows that take the tickets of lost ones would get their priorities, and rows before them a wrong successor."""
    options: dict[str, Any] = {"n_step": n_step, "min_size": 1, "prioritized": mc.Prioritized(), "name": "learner"}

    def work() -> mc.ReplayBuffer:
        replay = create(path)
        add(replay, 15)
        flush(replay)
        add(replay, 10)
        sampler = replay.sampler(8, **options)
        sampler.update_priorities(sampler.sample(200).index, np.full(200, 50.0))
        sampler._kept._write(sampler._kept._last_state())
        return replay

    die(work)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        add(replay, 10)
        sampler = replay.sampler(8, **options)
        state = sampler.state_dict()
        assert state["reach"].tolist() == [[0], [14 - n_step]]
        assert not state["masses"][14 - n_step :].any()
        batch = sampler.sample(2000)
        assert set(batch.index.tolist()) == {*range(15 - n_step), *range(15, 25 - n_step)}
        assert (batch.next_obs[:, 0] == batch.obs[:, 0] + n_step).all()


def test_the_state_is_written_while_drawing(path: Path) -> None:
    """A second thread writes it; killed at any moment, it leaves a whole file: see test_durable.py of crashes."""

    def work() -> mc.ReplayBuffer:
        replay = create(path, durable=mc.Durable(every_s=1e-3))
        add(replay, 30)
        sampler = replay.sampler(8, prioritized=mc.Prioritized(), name="learner")
        while not path.with_name(f"{path.name}@learner.sampler").exists():
            sampler.sample()
        return replay

    die(work)
    with mc.ReplayBuffer.attach(path) as replay:
        assert replay.sampler(8, prioritized=mc.Prioritized(), name="learner").state_dict()["batches"] > 0


def test_a_state_of_another_replay_is_left_alone(path: Path) -> None:
    with create(path) as replay:
        add(replay, 30)
        replay.sampler(8, prioritized=mc.Prioritized(), name="learner").sample()
    path.unlink()
    with create(path) as replay:
        assert replay.sampler(8, prioritized=mc.Prioritized(), name="learner").state_dict()["batches"] == 0


def test_a_state_of_other_options_is_refused(path: Path) -> None:
    with create(path) as replay:
        add(replay, 30)
        sampler = replay.sampler(8, prioritized=mc.Prioritized(), name="learner")
        sampler.sample()
    with mc.ReplayBuffer.attach(path) as replay:
        check_refused(
            lambda: replay.sampler(8, prioritized=mc.Prioritized(alpha=0.5), name="learner"),
            ValueError,
            "learner.sampler: state: expected the state of a sampler with the exponents",
        )
        assert replay.sampler(8, prioritized=mc.Prioritized(), name="learner").state_dict()["batches"] == 1


def test_a_damaged_mark_leaves_the_one_before(path: Path, reboot: Callable[[], None]) -> None:
    def work() -> mc.ReplayBuffer:
        replay = create(path)
        for count in (10, 5):
            add(replay, count)
            flush(replay)
        return replay

    die(work)
    damage(path, 1)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert actions(replay) == [*range(10)]


def test_two_damaged_marks_are_refused(path: Path) -> None:
    create(path).close()
    damage(path, 2)
    check_refused(lambda: mc.ReplayBuffer.attach(path), SegmentCorrupt, "two damaged ones")


def test_no_numbers_of_marks_and_counters_end_a_process(path: Path, reboot: Callable[[], None]) -> None:
    """Whatever stands in them, recovery works or is refused, and readers and writers go on or refuse the lane."""
    create(path, 2).close()
    segment = Segment.attach(path)
    geometry, rng = LaneGeometry(2, LANE, RecordLayout.of(SPEC).columns), np.random.default_rng(0)
    marks, numbers = Marks(path, segment.body, geometry), [0, 1, 39, 90, -1, 2**62, 2**63 - 1, -(2**63)]
    counters = segment.body[geometry.counters_offset(0) : geometry.counters_offset(2)].view(np.int64)
    for _ in range(100):
        lanes = rng.choice(numbers, (3, 2)).astype(np.int64)
        marks.write(replace(marks.newest(), number=marks.newest().number + 1, lanes=lanes, boot=bytes(16)))
        counters[:6] = rng.choice(numbers, 6)
        reboot()
        try:
            with mc.ReplayBuffer.attach(path) as replay:
                assert len(replay) <= 2 * LANE
                add(replay, 3)
        except SegmentCorrupt as error:
            assert "\n" not in str(error)
    segment.close()


def damage(path: Path, places: int) -> None:
    """Flips a bit in the newest mark, or in both."""
    segment = Segment.attach(path)
    marks = Marks(path, segment.body, LaneGeometry(1, LANE, RecordLayout.of(SPEC).columns))
    for place in {1: [marks.newest().number % 2], 2: [0, 1]}[places]:
        marks._places[place][20] ^= 1
    segment.close()


def test_who_only_watches_does_not_recover(path: Path, reboot: Callable[[], None]) -> None:
    create(path).close()
    reboot()
    check_refused(lambda: mc.ReplayBuffer.watch(path), SegmentCorrupt, "expected a segment recovered by `attach`, got")
    mc.ReplayBuffer.attach(path).close()
    mc.ReplayBuffer.watch(path).close()


class Waits(Exception):
    """Comes in place of a pause of one who waits for a recovery."""


def test_nobody_enters_before_a_recovery_has_ended(
    path: Path, reboot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end erases all pledges, so a writer who had entered would overwrite rows without one."""

    def wait(seconds: float) -> NoReturn:
        raise Waits

    def enter(file: File) -> None:
        with pytest.raises(Waits):
            mc.ReplayBuffer.attach(path)

    create(path).close()
    reboot()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("marlcore.memory.recovery.time", SimpleNamespace(sleep=wait))
        meanwhile.setattr(File, "sync", enter)
        replay = mc.ReplayBuffer.attach(path)
        mc.ReplayBuffer.attach(path).close()
    replay.close()


@pytest.mark.parametrize("stops", [False, True], ids=["killed", "and the machine stops"])
@pytest.mark.parametrize("synced", range(3))
def test_a_recovery_that_did_not_end_is_done_anew(
    path: Path, reboot: Callable[[], None], monkeypatch: pytest.MonkeyPatch, synced: int, stops: bool
) -> None:
    """It leaves the same rows, and forgets that the disk had failed before."""

    def work() -> mc.ReplayBuffer:
        replay = create(path)
        add(replay, 35)
        flush(replay)
        add(replay, 15)  # by a pledge
        replay._durability.marks.fail()
        return replay

    def recover() -> None:
        syncs = itertools.count()
        sync = File.sync
        monkeypatch.setattr(
            File, "sync", lambda file: sync(file) if next(syncs) < synced else os.kill(os.getpid(), signal.SIGKILL)
        )
        mc.ReplayBuffer.attach(path)

    die(work)
    reboot()
    assert reap(fork(recover)) == -signal.SIGKILL
    if stops:
        reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert replay.recovered is not None and replay.recovered.rows == len(actions(replay)) > 0
        assert actions(replay) == [*range(35 - len(actions(replay)), 35)]
        assert Mapped(replay).words(Mapped(replay).geometry.counters_offset(0))[4:6].tolist() == [0, 0]
        flush(replay)
        add(replay, LANE)
        assert actions(replay) == [*range(35, 35 + LANE)]


def test_a_disk_that_fails_ends_the_marks(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: Callable[[], None], reboot: Callable[[], None]
) -> None:
    """After a failed sync, the kernel takes the pages for written: no later one may say that they are on disk."""
    replay = create(path)
    add(replay, 10)
    flush(replay)
    add(replay, 5)
    failing()
    with pytest.raises(OSError, match="Input/output error"):
        replay.close()
    monkeypatch.undo()
    heir = mc.ReplayBuffer.attach(path)
    assert actions(heir) == [*range(15)]
    with pytest.raises(OSError, match="an earlier write of the file failed"):
        heir.close()
    reboot()
    with mc.ReplayBuffer.attach(path) as left:
        assert actions(left) == [*range(10)]
        flush(left)


def test_a_replay_that_cannot_be_put_on_disk_is_not_made(path: Path, failing: Callable[[], None]) -> None:
    failing()
    with pytest.raises(OSError, match="Input/output error"):
        create(path)
    assert not path.exists()


def test_no_descriptor_or_thread_means_no_replay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that stayed would refuse the next attempt."""
    create(path.with_name("loads what a first one loads")).close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    for more in range(3):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, limits[1]))
        try:
            with pytest.raises(mc.MarlcoreError, match="expected a free file descriptor, got none"):
                create(path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not path.exists()

    def start(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        create(path)
    assert not path.exists()


def test_an_interrupted_create_leaves_no_file(path: Path) -> None:
    files = "transitions/durable.py", "transitions/lanes.py", "memory/shared_object.py"

    def interrupt(moment: int) -> int:
        return at_instruction(lambda: create(path), moment, lambda file: file.endswith(files), signals=True)[1]

    moments = interrupt(-1)
    path.unlink()
    for moment in range(1, moments, 7):  # the last one is behind the call by which the file stays
        assert interrupt(moment) == moment
        assert not path.exists()


def test_unlink_removes_the_samplers_files(path: Path) -> None:
    with create(path) as replay:
        add(replay, 30)
        samplers = [replay.sampler(8, name=name) for name in ("a", "b")]
        samplers[0].sample()
    assert len([*path.parent.iterdir()]) == 3
    with mc.ReplayBuffer.attach(path) as replay:
        sampler = replay.sampler(8, name="a")  # whose last state is not written either
        sampler.sample()
        replay.unlink()
    assert not [*path.parent.iterdir()]


def test_a_save_of_a_durable_replay_is_an_ordinary_one(path: Path) -> None:
    save = path.with_name("save")
    with create(path) as replay:
        add(replay, 30)
        replay.save(save)
    for source in (save, path):
        with mc.ReplayBuffer.load(source) as loaded:
            assert loaded.durable is None
            assert actions(loaded) == [*range(30)]


def test_a_clear_outlives_the_machine_and_rows_that_do_not(path: Path, reboot: Callable[[], None]) -> None:
    def work() -> mc.ReplayBuffer:
        replay = create(path)
        add(replay, 15)
        flush(replay)
        add(replay, 5)
        replay.clear()
        return replay

    die(work)
    reboot()
    with mc.ReplayBuffer.attach(path) as replay:
        assert replay.recovered == Recovered(rows=15, cut=5, overwritten=0)
        assert len(replay) == 0
        add(replay, 4)
        assert len(replay) == 4
        assert {*replay.sampler(32, min_size=1).sample().action.tolist()} == {15, 16, 17}  # of the last, none follows


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the flusher is a thread
def test_a_named_sampler_in_a_forked_child_leaves_its_file_to_the_parent(path: Path) -> None:
    with create(path, durable=mc.Durable(every_s=1e-6)) as replay:
        add(replay, 20)
        sampler = replay.sampler(8, seed=1, name="learner")
        sampler.sample()
        sampler._kept._thread.join()
        file = path.with_name(f"{path.name}@learner.sampler")
        before = file.stat().st_ino

        def draw() -> None:
            for _ in range(3):
                assert len(sampler.sample()) == 8
                sampler._kept._thread.join()
            assert file.stat().st_ino == before

        assert reap(fork(draw)) == 0
        sampler.sample()
        sampler._kept._thread.join()
        assert file.stat().st_ino != before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the flusher is a thread
def test_a_forked_child_leaves_the_flusher_to_its_parent(path: Path) -> None:
    with create(path) as replay:
        add(replay, 5)
        assert reap(fork(lambda: None)) == 0
        with mc.ReplayBuffer.attach(path) as other:
            assert other._durability._flusher is None
    with mc.ReplayBuffer.attach(path) as heir:
        assert heir._durability._flusher is not None
        assert actions(heir) == [*range(5)]


def test_a_file_system_that_keeps_nothing_is_refused() -> None:
    refused = (
        "path: expected a durable file on bcachefs, btrfs, ext4, f2fs, xfs, zfs, which keep what they synced, got tmpfs"
    )
    check_refused(lambda: create(Path("/dev/shm/never-made")), ValueError, refused)


test_bad_input_is_refused = refusals(
    {
        "no path": (
            lambda: mc.ReplayBuffer.create(SPEC, 40, durable=mc.Durable()),
            "path: expected an ordinary file for a durable replay, got None",
        ),
        "no options": (
            lambda: mc.ReplayBuffer.create(SPEC, 40, path="replay", durable=2.0),
            TypeError,
            "durable: expected a Durable or None, got 2.0",
        ),
        "no seconds": (lambda: mc.Durable(every_s=0), "every_s: expected a number in (0, 86400], got 0"),
        "no directory": (
            lambda: create(Path("/no/directory/replay")),
            "path: expected a file in a directory that exists, got /no/directory/replay",
        ),
    }
)


def test_only_samplers_of_durable_replays_have_names(path: Path) -> None:
    with mc.ReplayBuffer.create(SPEC, 40) as replay:
        got = "name: expected None, since this replay is not durable, got 'learner'"
        check_refused(lambda: replay.sampler(8, name="learner"), ValueError, got)
    with create(path) as replay:
        got = "name: expected at most 100 letters, digits, '_', '.' and '-', got 'a/b'"
        check_refused(lambda: replay.sampler(8, name="a/b"), ValueError, got)


def test_a_uniform_sampler_does_not_replace_priorities(path: Path) -> None:
    with create(path) as replay:
        add(replay, 20)
        with replay.sampler(8, seed=1, prioritized=mc.Prioritized(), name="learner") as sampler:
            sampler.update_priorities(sampler.sample().index, np.full(8, 9.0))
            state = sampler.state_dict()
        expected = "expected a prioritized sampler, like the last sampler of this name, got a uniform sampler"
        check_refused(lambda: replay.sampler(8, name="learner"), ValueError, expected)
        again = replay.sampler(8, prioritized=mc.Prioritized(), name="learner").state_dict()
        np.testing.assert_array_equal(again["generator"], state["generator"])
        assert again["highest"] == state["highest"] > 8.0


@pytest.mark.parametrize(
    "sequence", [None, mc.Sequence(3), mc.Sequence(3, period=1), mc.Sequence(8, whole=True)], ids=str
)
def test_a_named_sampler_without_priorities_continues(path: Path, sequence: mc.Sequence | None) -> None:
    with create(path, durable=mc.Durable(every_s=1e-6)) as replay, replay.writer() as writer:
        for ticket in range(24):
            writer.add(np.full(3, ticket, np.float32), ticket, 0.0, terminated=ticket % 6 == 5)
        flush(replay)
        with replay.sampler(8, seed=1, sequence=sequence, name="learner") as sampler:
            sampler.sample()
            expected = copy.deepcopy(sampler.state_dict())
        again = replay.sampler(8, seed=2, sequence=sequence, name="learner").state_dict()
        np.testing.assert_array_equal(again["generator"], expected["generator"])


def test_a_sampler_of_whole_episodes_keeps_its_priorities(path: Path) -> None:
    options: dict[str, Any] = {"sequence": mc.Sequence(4, whole=True), "prioritized": mc.Prioritized(), "name": "rnn"}
    with create(path, durable=mc.Durable(every_s=1e-6)) as replay, replay.writer() as writer:
        for ticket in range(24):
            writer.add(np.full(3, ticket, np.float32), ticket, 0.0, terminated=ticket % 3 == 2)
        flush(replay)
        with replay.sampler(8, seed=1, **options) as sampler:
            sampler.update_priorities(sampler.sample().index, np.arange(1.0, 9.0))
            masses = sampler.state_dict()["masses"]
        again = replay.sampler(8, **options).state_dict()["masses"]
        assert len(np.unique(masses)) > 3
        np.testing.assert_array_equal(again[:18], masses[:18])


def test_unlink_leaves_the_files_of_a_replay_whose_name_is_longer(path: Path) -> None:
    other = path.with_name(f"{path.name}@eval")
    for each in (path, other):
        with create(each) as replay:
            add(replay, 20)
            with replay.sampler(8, name="learner") as sampler:
                sampler.sample()
    with mc.ReplayBuffer.attach(path) as replay:
        replay.unlink()
    assert [file.name for file in sorted(path.parent.iterdir())] == [other.name, f"{other.name}@learner.sampler"]


def test_unlink_leaves_the_files_of_a_replay_that_took_the_path(path: Path) -> None:
    earlier = create(path)
    path.unlink()
    with create(path) as replay:
        add(replay, 20)
        with replay.sampler(8, name="learner") as sampler:
            sampler.sample()
        earlier.unlink()
        earlier.close()
        earlier.unlink()
        assert len([*path.parent.iterdir()]) == 2


def test_the_floors_of_a_clear_are_on_disk_before_their_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be on other pages: with the number alone, some lanes would have the floors of an earlier clear."""
    with create(path) as replay:
        add(replay, 5)
        seen: list[list[int]] = []
        words = Mapped(replay).words(Mapped(replay).geometry.counters_offset(0))
        monkeypatch.setattr(File, "sync", lambda file: seen.append(words[6:9].tolist()))
        replay.clear()
        assert seen == [[0, 5, 0], [0, 5, 1]]
        monkeypatch.undo()
