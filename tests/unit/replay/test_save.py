"""A save holds a replay at one moment: no row is torn, and no death leaves half a file."""

import errno
import json
import os
import random
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled import filled
from mapped import Mapped
from refused import check_refused
from seams import patch, trusting
from tiers import long_but

import marlcore as mc
from marlcore.memory import LINE, NativeLanes, Segment
from marlcore.transitions import RecordLayout

WORDS = {"in the record": 4, "in a column of its own": 64}
EPISODE = 7
WAITS = range(4096, 4096 + LINE)  # a save's bytes that nobody needs

WRITER = """
    import sys
    from marlcore import ReplayBuffer
    from marlcore.testing.rows import filled
    replay, lane = ReplayBuffer.attach(sys.argv[1]), int(sys.argv[2])
    words = replay.spec.obs.shape[0]
    with replay.writer(lane) as writer:
        print("ready", flush=True)
        ticket = 0
        while True:
            writer.add(filled(words, ticket), ticket, float(ticket % 1000), ticket % 7 == 6)
            ticket += 1
"""


class State:
    """Stands in for a sampler with a state."""

    def __init__(self, named=None, **arrays) -> None:
        self.arrays = arrays if named is None else named

    def state_dict(self):
        return self.arrays


def spec_of(words: int, **options) -> mc.TransitionSpec:
    return mc.TransitionSpec(mc.Field((words,), "uint64"), mc.Field((), "int64"), **options)


def add_rows(writer, words: int, first: int, rows: int) -> None:
    tickets = np.arange(first, first + rows)
    writer.add_batch(
        filled(words, tickets), tickets, (tickets % 1000).astype(np.float32), tickets % EPISODE == EPISODE - 1
    )


def window(replay: mc.ReplayBuffer) -> list[tuple[int, int]]:
    lo, hi = np.zeros((2, replay.lanes), np.int64)
    Mapped(replay).lanes.windows(lo, hi)()
    return list(zip(lo.tolist(), hi.tolist(), strict=True))


def wrong_rows(replay: mc.ReplayBuffer) -> int:
    """Counts the windows' rows, read from the memory itself, that differ from the row written under their ticket."""
    wrong, mapped = 0, Mapped(replay)
    for lane, (lo, hi) in enumerate(window(replay)):
        tickets, fields = np.arange(lo, hi), {}
        for place in RecordLayout.of(replay.spec).places:
            column = np.ascontiguousarray(mapped.column(place.column, lane))
            fields[place.role] = place.views(column)[tickets % len(column)]
        torn = (fields["obs"] != filled(fields["obs"].shape[1], tickets)).any(1)
        wrong += int((torn | (fields["action"] != tickets)).sum())
    return wrong


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("seed", long_but(range(5), range(20)))
def test_a_save_is_cut_when_it_begins(tmp_path, monkeypatch, words, seed):
    """Writers add rows at each write to the file, so the test knows the content of the save to the row."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 30))
    with mc.ReplayBuffer.create(spec_of(words), 3 * rows, lanes=3) as replay:
        writers = [replay.writer(lane) for lane in range(3)]
        committed = [0, 0, 0]

        def go_on(most: int) -> None:
            for lane, writer in enumerate(writers):
                for _ in range(rng.integers(0, 3)):
                    count = int(rng.integers(1, max(2, min(most, rows) + 1)))
                    add_rows(writer, words, committed[lane], count)
                    committed[lane] += count

        go_on(rows)
        cut, copied = window(replay), []
        pwrite = os.pwrite

        def write_and_go_on(fd, data, offset):
            done = pwrite(fd, data, offset)
            if len(data) == 16:  # a lane's counters: it was copied
                copied.append(list(oldest))
            elif offset:
                go_on(rows // 4)
                oldest[:] = [max(0, count - rows) for count in committed]
            return done

        oldest = [lo for lo, _ in cut]
        monkeypatch.setattr(os, "pwrite", write_and_go_on)
        replay.save(tmp_path / "save")
        monkeypatch.undo()
        first = [max(lo, min(copied[lane][lane], hi)) for lane, (lo, hi) in enumerate(cut)]
        hollow = [lo == hi > 0 for lo, (_, hi) in zip(first, cut, strict=True)]  # keeps a row without content
        expected = [(lo - empty, hi) for lo, empty, (_, hi) in zip(first, hollow, cut, strict=True)]
        with mc.ReplayBuffer.load(tmp_path / "save") as copy:
            assert window(copy) == expected
            assert wrong_rows(copy) == sum(hollow)


@pytest.mark.long
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("excluding", [True, False], ids=["", "control"])
def test_no_saved_row_is_torn_while_writers_lap(program, tmp_path, words, excluding):
    """The control saves lapped rows too, and so rows of other tickets."""
    seen, saved = Counter(), 0
    with mc.ReplayBuffer.create(spec_of(words), 2048, lanes=2) as replay, nullcontext() if excluding else trusting():
        writers = [program(WRITER, args=[replay.handle.path, lane]) for lane in range(2)]
        assert [writer.line() for writer in writers] == ["ready", "ready"]
        mapped = Mapped(replay)
        while saved < 50_000 or not seen["excluded" if excluding else "wrong"]:
            before = [mapped.committed(lane) for lane in range(2)]
            replay.save(tmp_path / "save")
            after = [mapped.committed(lane) for lane in range(2)]
            with mc.ReplayBuffer.attach(tmp_path / "save") as copy:
                seen["wrong"] += wrong_rows(copy)
                if excluding:  # a lane that was lapped wholly keeps a row without content, which is not counted
                    seen["wrong"] -= sum(hi - lo for lo, hi in window(copy)) - len(copy)
                for lane, (lo, hi) in enumerate(window(copy)):
                    assert before[lane] <= hi <= after[lane]
                    assert 0 <= hi - lo <= 1024
                    seen["excluded"] += min(hi, 1024) - (hi - lo)
                    saved += hi - lo
            assert saved < 5_000_000
        for writer in writers:
            writer.kill()
    assert (seen["wrong"] == 0) == excluding


def test_a_wholly_lapped_lane_is_saved_empty(tmp_path, monkeypatch):
    with mc.ReplayBuffer.create(spec_of(4), 8) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 8)
        pwrite, late = os.pwrite, iter([(8, 8), (16, 8)])

        def lap(fd, data, offset):
            if offset and len(data) != 16:
                for first, rows in late:
                    add_rows(writer, 4, first, rows)
            return pwrite(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", lap)
        replay.save(tmp_path / "save")
    with mc.ReplayBuffer.load(tmp_path / "save") as copy:
        assert window(copy) == [(7, 8)]  # a row without content, for the count of what was written
        assert (len(copy), copy.inserted) == (0, 8)
        with copy.writer() as writer:
            assert writer.add(np.zeros(4, np.uint64), 0, 1.0, True) == 8
        assert len(copy) == 1


def test_a_save_keeps_the_count_of_a_lane_that_is_lapped_at_each_look(tmp_path, monkeypatch):
    windows, counts = NativeLanes.windows, []

    def lapped_windows(lanes, *arrays):
        def look():
            seen = fill()
            counts.append(replay.inserted)
            for _ in range(2):
                add_rows(writer, 4, 0, 8)
            return seen

        fill = windows(lanes, *arrays)
        return look

    with mc.ReplayBuffer.create(spec_of(4), 8) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 8)
        add_rows(writer, 4, 0, 5)
        with monkeypatch.context() as patched:
            patched.setattr(NativeLanes, "windows", lapped_windows)
            replay.save(tmp_path / "save")
    with mc.ReplayBuffer.load(tmp_path / "save") as copy:
        assert (len(copy), copy.inserted) == (0, counts[0]) == (0, 13)


def test_a_save_keeps_the_count_of_a_lane_whose_writer_was_killed_over_all_of_it(tmp_path):
    obs = np.zeros(4, np.uint64)
    with mc.ReplayBuffer.create(spec_of(4, next_obs=True), 1) as replay, replay.writer() as writer:
        for ticket in range(5):
            writer.add(obs, ticket, 0.0, next_obs=obs)
        mapped = Mapped(replay)
        begin, _ = mapped.lanes.appender_in_steps(0, mapped.body, 0)
        assert begin() == 5
        replay.save(tmp_path / "save")
        with mc.ReplayBuffer.load(tmp_path / "save") as copy:
            assert (len(copy), copy.inserted) == (0, replay.inserted) == (0, 5)


def test_a_loaded_copy_is_independent_of_its_save(tmp_path):
    with mc.ReplayBuffer.create(spec_of(4), 20) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 5)
        replay.save(tmp_path / "save")
        add_rows(writer, 4, 5, 5)
    for _ in range(2):
        with mc.ReplayBuffer.load(tmp_path / "save", name="again") as copy, copy.writer() as writer:
            assert window(copy) == [(0, 5)]
            add_rows(writer, 4, 5, 15)
            path = Path(copy.handle.path)
            assert path.name.startswith("marlcore-again-") and path.exists()
        assert not path.exists()


def test_a_save_with_a_limiter_is_drawn_from_without_it(tmp_path):
    """The rows and priorities stay the same, also in a save of the copy."""
    limiter = mc.RateLimiter(samples_per_insert=1.0, min_size=5, tolerance=8.0, lead=0.0)
    with mc.ReplayBuffer.create(spec_of(4), 20, limiter=limiter) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 5)
        sampler = replay.sampler(2, prioritized=mc.Prioritized())
        replay.save(tmp_path / "save", sampler)
    with mc.ReplayBuffer.load(tmp_path / "save") as kept, pytest.raises(mc.NotEnoughData, match="limiter expects"):
        assert kept.limiter == limiter and kept.sampler(2).sample()
    with mc.ReplayBuffer.load(tmp_path / "save", limited=False) as copy:
        copy.save(tmp_path / "again")
    for name, limited in (("save", False), ("again", True)):
        with mc.ReplayBuffer.load(tmp_path / name, limited=limited) as copy:
            assert copy.limiter is None and window(copy) == [(0, 5)] and copy.sampler(2).sample() is not None
            assert copy.sampler_state is None or copy.sampler_state.keys() == sampler.state_dict().keys()


@pytest.mark.parametrize("capacity", [10, 30, 100])  # of differing room for the slots that a limiter would have
def test_a_save_without_a_limiter_is_the_same_without_it(tmp_path, capacity):
    with mc.ReplayBuffer.create(spec_of(4), capacity, lanes=2) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 3)
        replay.save(tmp_path / "save")
    for again in ("once", "twice"):
        with mc.ReplayBuffer.load(tmp_path / "save", limited=False) as copy:
            assert window(copy) == [(0, 3), (0, 0)] and wrong_rows(copy) == 0, again
            copy.save(tmp_path / "save")


def test_a_save_opened_in_place_is_a_replay_in_a_file(tmp_path):
    """Each byte of the file is allocated."""
    with mc.ReplayBuffer.create(spec_of(4), 20) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 5)
        replay.save(tmp_path / "save")
    assert (tmp_path / "save").stat().st_blocks * 512 >= (tmp_path / "save").stat().st_size
    with mc.ReplayBuffer.attach(tmp_path / "save") as in_place, in_place.writer() as writer:
        add_rows(writer, 4, 5, 5)
    (tmp_path / "link").symlink_to(tmp_path / "save")
    with mc.ReplayBuffer.load(tmp_path / "link", into=tmp_path / "copy") as copy:
        assert window(copy) == [(0, 10)]
        assert copy.handle.path == str(tmp_path / "copy")
        copy.save(tmp_path / "again")
    for path in ("copy", "again"):
        with mc.ReplayBuffer.load(tmp_path / path) as copy:
            assert window(copy) == [(0, 10)] and wrong_rows(copy) == 0
    with mc.ReplayBuffer.attach(tmp_path / "save", spec_of(4)) as in_place:
        in_place.unlink()
    with pytest.raises(mc.SegmentNotFound):
        mc.ReplayBuffer.attach(in_place.handle)


def test_a_samplers_state_is_saved_beside_the_rows(tmp_path):
    arrays = {
        "priorities": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],  # not contiguous
        "cursor": np.array([3, 2**60], np.int64),
        "beta": np.array(0.4),
        "nothing": np.zeros((0, 3), np.uint8),
        "known": np.array([True, False]),
    }
    with mc.ReplayBuffer.create(spec_of(64), 20) as replay, replay.writer() as writer:

        class Late(State):
            def state_dict(self):
                add_rows(writer, 64, 0, 5)  # rows that a state knows are saved
                return super().state_dict()

        replay.save(tmp_path / "save", Late(**arrays))
        assert replay.sampler_state is None
    with (
        mc.ReplayBuffer.attach(tmp_path / "save") as in_place,
        mc.ReplayBuffer.load(tmp_path / "save") as loaded,
        mc.ReplayBuffer.attach(loaded.handle) as elsewhere,  # as in a learner's process
    ):
        for copy in (in_place, loaded, elsewhere):
            state = copy.sampler_state
            assert state.keys() == arrays.keys()
            for name, array in arrays.items():
                assert state[name].dtype == array.dtype
                assert np.array_equal(state[name], array) and state[name].shape == array.shape
            assert window(copy) == [(0, 5)] and wrong_rows(copy) == 0
        loaded.save(tmp_path / "again")  # without a sampler: an old state would not fit rows written since
        elsewhere.save(tmp_path / "empty", State())
    for name, expected in (("again", None), ("empty", {})):
        with mc.ReplayBuffer.load(tmp_path / name) as copy:
            assert copy.sampler_state == expected


NUMBERS = "sampler: state 'a': expected an array of numbers, got dtype"
SWEPT = f"/dev/shm/marlcore-{os.getpid()}"
IN_SHM = "path: expected a name without 'marlcore-' in /dev/shm, "
REFUSED_SAVES: list[tuple[Callable[[mc.ReplayBuffer, Path], object], type[Exception], str]] = [
    (lambda r, to: r.save(to / "a", State(a=np.array([None]))), TypeError, f"{NUMBERS} object"),
    (lambda r, to: r.save(to / "a", State(a="text")), TypeError, f"{NUMBERS} <U4"),
    (lambda r, to: r.save(to / "a", State(a=np.zeros(2, ">i4"))), TypeError, f"{NUMBERS} >i4"),
    (lambda r, to: r.save(to / "a", State({3: np.zeros(2)})), TypeError,
        "sampler: expected a state whose keys are names, got the key 3"),
    (lambda r, to: r.save(to / "a", 3), TypeError, "sampler: expected a sampler with a state_dict, got 3"),
    (lambda r, to: r.save(to), ValueError, "path: expected an ordinary file, got "),
    (lambda r, to: (os.mkfifo(to / "pipe"), r.save(to / "pipe")), ValueError, "/pipe, which is not one"),
    (lambda r, to: r.save(to / "no" / "save"), ValueError, "path: expected a file in a directory that exists, got "),
    (lambda r, to: r.save(r.handle.path), ValueError, "path: expected another file than the replay's own, got /"),
    (lambda r, to: r.save(SWEPT), ValueError, IN_SHM),
    (lambda r, to: mc.ReplayBuffer.create(r.spec, 40, path=SWEPT), ValueError, IN_SHM),
    (lambda r, to: (r.close(), r.save(to / "a")), mc.ClosedError, "it was closed"),
    (lambda r, to: (r.close(), r.sampler_state), mc.ClosedError, "it was closed"),
]  # fmt: skip


def test_refuses_to_save(tmp_path, subtests):
    for save, error, says in REFUSED_SAVES:
        with subtests.test(says), mc.ReplayBuffer.create(spec_of(4), 20) as replay:
            check_refused(lambda save=save, replay=replay: save(replay, tmp_path), error, says)
    assert {path.name for path in tmp_path.iterdir()} == {"pipe"} and not Path(SWEPT).exists()


def test_a_saver_leaves_what_another_one_is_about_to_rename(tmp_path, monkeypatch):
    with mc.ReplayBuffer.create(spec_of(4), 20) as one, mc.ReplayBuffer.create(spec_of(4), 40) as other:
        rename = os.replace

        def meanwhile(source, target):
            monkeypatch.setattr(os, "replace", rename)
            other.save(tmp_path / "other")
            rename(source, target)

        monkeypatch.setattr(os, "replace", meanwhile)
        one.save(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


@pytest.mark.parametrize("removed", [False, True])
def test_a_save_replaced_while_it_is_opened_is_loaded(tmp_path, monkeypatch, removed):
    with mc.ReplayBuffer.create(spec_of(4), 20) as replay, replay.writer() as writer:
        replay.save(path := tmp_path / "save")
        add_rows(writer, 4, 0, 5)
        status = os.fstat

        def before_the_lock(fd):
            monkeypatch.setattr(os, "fstat", status)
            path.unlink() if removed else replay.save(path)
            return status(fd)

        monkeypatch.setattr(os, "fstat", before_the_lock)
        with pytest.raises(mc.SegmentNotFound) if removed else nullcontext(), mc.ReplayBuffer.load(path) as copy:
            assert window(copy) == [(0, 5)]


@pytest.fixture
def saved(tmp_path):
    """The path of a save of five rows, with a sampler's state."""
    with mc.ReplayBuffer.create(spec_of(4), 20) as replay, replay.writer() as writer:
        add_rows(writer, 4, 0, 5)
        replay.save(tmp_path / "save", State(priorities=np.arange(5.0)))
    return tmp_path / "save"


@pytest.mark.long
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync"])
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, mc.SharedMemoryFull), (errno.EDQUOT, mc.SharedMemoryFull), (errno.EIO, OSError)],
)
def test_a_disk_that_is_full_or_fails_leaves_the_earlier_save(saved, monkeypatch, call, number, error):
    def fails(*arguments):
        raise OSError(number, os.strerror(number))

    before = saved.read_bytes()
    with mc.ReplayBuffer.create(spec_of(4), 20) as replay:
        monkeypatch.setattr(os, call, fails)
        with pytest.raises(error, match="the replay was not saved, the earlier save is kept") as caught:
            replay.save(saved)
        assert str(saved) in str(caught.value) and len(str(caught.value).splitlines()) == 1
        with pytest.raises(error, match="there is no earlier save"):
            replay.save(saved.with_name("other"))
        monkeypatch.undo()
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_save_that_does_not_fit_is_refused_beforehand(saved, monkeypatch):
    with mc.ReplayBuffer.create(spec_of(4), 2000) as replay:
        patch(monkeypatch, "memory", free_bytes=lambda directory: 50_000)
        says = f"the earlier save is kept ({saved.parent}: "
        check_refused(lambda: replay.save(saved), mc.SharedMemoryFull, says)
    monkeypatch.undo()
    mc.ReplayBuffer.load(saved).close()


def describe(path: Path, change) -> None:
    """Changes a segment's description and corrects its checksum."""
    raw = bytearray(path.read_bytes())
    header_bytes, text_bytes = struct.unpack_from("<Q", raw, 16)[0], struct.unpack_from("<Q", raw, 40)[0]
    described = json.loads(raw[48 : 48 + text_bytes])
    text = change(described)
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    raw[48:header_bytes] = text.ljust(header_bytes - 48, b"\0")
    struct.pack_into("<Q", raw, 40, len(text))
    struct.pack_into("<I", raw, 12, 0)
    struct.pack_into("<I", raw, 12, zlib.crc32(raw[:header_bytes]))
    path.write_bytes(raw)


HUGE = 2**62
FITS = {"dtype": "float64", "shape": [5], "offset": 1536}
STATES = [
    [1],
    {"p": 7},
    {"p": {"dtype": "float64", "shape": [5]}},
    {"p": FITS | {"start": 0}},
    *({"p": FITS | {"dtype": dtype}} for dtype in ("O", "float99", ">f8", "f8,f8")),
    # behind the end, in the lanes, before them, where the sum wraps, no whole number, and misaligned
    *({"p": FITS | {"offset": offset}} for offset in (1 << 20, 128, -128, 128 * 2**64, 1536.0)),
    {"p": FITS | {"shape": [1], "offset": 1539}},
    # over the end, negative, where the product wraps, no numbers, and too many
    *({"p": FITS | {"shape": shape}} for shape in ([100_000], [-5], [HUGE, 4], [HUGE, HUGE, 0], ["5"], [True])),
    {"p": FITS | {"shape": [1] * 100}},
]


def test_a_list_of_arrays_that_fits_is_read(saved):
    """This is the control of the damaged lists below; the second list is refused in place too."""
    describe(saved, lambda description: description | {"sampler": {"p": FITS}})
    with mc.ReplayBuffer.attach(saved) as replay:
        assert replay.sampler_state["p"].tolist() == [0, 1, 2, 3, 4]
    describe(saved, lambda description: description | {"sampler": {"p": FITS | {"shape": [100_000]}}})
    with mc.ReplayBuffer.attach(saved) as replay:
        check_refused(lambda: replay.sampler_state, mc.SegmentCorrupt, "the saved sampler state is damaged: ")


def holds(content: bytes) -> Callable[[Path], object]:
    return lambda save: save.write_bytes(content)


def cut(length: int) -> Callable[[Path], object]:
    return lambda save: save.write_bytes(save.read_bytes()[:length])


def described(text: bytes | None = None, **changes: Any) -> Callable[[Path], object]:
    return lambda save: describe(save, lambda description: description | changes if text is None else text)


def of_another_kind(save: Path) -> None:
    save.unlink()
    Segment.create("other", {"kind": "weights"}, 100, save).close()


def with_states(lane_rows: int) -> Callable[[Path], object]:
    def write(save: Path) -> None:
        with mc.ReplayBuffer.create(spec_of(4, extras={"h": mc.Field((2,), every=4)}), 8) as replay:
            replay.save(save)
        describe(save, lambda description: description | {"lane_rows": lane_rows})

    return write


KIND = "expected a replay, got another kind of segment"
OTHER = "expected a marlcore segment, got another file"
OBS = "spec obs: expected uint64 (4,), got"
EVERY = "spec extras['h']: expected float32 (2,) every 4, got float32 (2,) every 8"
BAD_LANES = [
    {"lanes": 0}, {"lanes": -1}, {"lanes": HUGE}, {"lanes": 2.0}, {"lanes": True}, {"lanes": None},
    {"lane_rows": 0}, {"lane_rows": -1}, {"lane_rows": 2**64}, {"lane_rows": 21_000}, {"lane_rows": "20"},
    {"spec": {}}, {"spec": None}, {"kind": None}, {"lanes": 2**20, "lane_rows": 2**20},
    {"spec": {"obs": [[HUGE, HUGE], "uint8"], "action": [[], "int64"], "extras": {}, "next_obs": False}},
    {"spec": {"obs": {}, "action": [[], "int64"], "extras": {}, "next_obs": False}},
    {"limiter": {"samples_per_insert": -1.0}},
]  # fmt: skip
OTHER_SPECS = [
    (spec_of(5), f"{OBS} uint64 (5,)"),
    (spec_of(4, next_obs=True), "spec next_obs: expected False, got True"),
    (spec_of(4, extras={"p": mc.Field()}), "spec extras['p']: expected none, got float32 ()"),
    (mc.TransitionSpec({"a": mc.Field((4,), "uint64")}, mc.Field((), "int64")), f"{OBS} none"),
    (mc.TransitionSpec(mc.Field((4,), "uint64"), mc.Field()), "action: expected int64 ()"),
]
REFUSED: list[tuple[Callable[[Path], object], Any, type[Exception], str]] = [
    # how the save is changed, the spec that is expected of it, the error and what it says
    *((lambda save: None, spec, mc.LayoutMismatch, says) for spec, says in OTHER_SPECS),
    (with_states(8), spec_of(4, extras={"h": mc.Field((2,), every=8)}), mc.LayoutMismatch, EVERY),
    (lambda save: None, "S2", TypeError, "spec: expected a TransitionSpec or None, got 'S2'"),
    (holds(b""), None, mc.SegmentCorrupt, OTHER),
    (holds(b"import numpy\n" * 1000), None, mc.SegmentCorrupt, OTHER),
    (cut(4096), None, mc.SegmentCorrupt, " bytes, got 4096"),
    (cut(-1), None, mc.SegmentCorrupt, "expected a file of "),
    (cut(3000), None, mc.SegmentCorrupt, "the file ends inside its header"),
    (Path.unlink, None, mc.SegmentNotFound, "no such segment"),
    (lambda save: (save.unlink(), save.mkdir()), None, mc.SegmentCorrupt, "got Is a directory"),
    (of_another_kind, None, mc.SegmentCorrupt, KIND),
    (with_states(7), None, mc.SegmentCorrupt, KIND),  # a part of a state's interval
    *((described(**change), None, mc.SegmentCorrupt, KIND) for change in BAD_LANES),
    *((described(text), None, mc.SegmentCorrupt, "") for text in (b"{", b"[" * 3000, b"\xff\xfe", b"3")),
    *((described(sampler=state), None, mc.SegmentCorrupt, "the saved sampler state is damaged: ") for state in STATES),
]


def test_refuses_to_load(saved, subtests):
    for number, (change, spec, error, says) in enumerate(REFUSED):
        with subtests.test(f"{number}: {says}"):
            path = shutil.copy(saved, saved.with_name(f"save-{number}"))
            change(path)
            for part in (says, "" if error is TypeError else f"{path}: "):
                check_refused(lambda path=path, spec=spec: mc.ReplayBuffer.load(path, spec), error, part)


def test_counters_that_contradict_one_another_are_refused(saved):
    describe(saved, lambda described: {key: value for key, value in described.items() if key != "checksum"})
    for counters in ((5, 4), (5, 26), (-1, 5), (5, -1), (HUGE, HUGE), (0, 21)):
        with saved.open("r+b") as file:
            file.seek(4096 + 256)
            file.write(struct.pack("<qq", *counters))
        with pytest.raises(mc.SegmentCorrupt, match="counters contradict one another"):
            mc.ReplayBuffer.load(saved)


def test_a_save_that_a_sampler_looked_at_in_place_is_loaded_and_checked(saved):
    with mc.ReplayBuffer.attach(saved) as in_place:
        check_refused(in_place.sampler(256).sample, mc.NotEnoughData, "expected at least 256 transitions, got 5")
    found = bytearray(saved.read_bytes())
    assert any(found[at] for at in WAITS), "it announced its wait there"
    mc.ReplayBuffer.load(saved).close()
    found[WAITS.stop] ^= 1
    saved.write_bytes(found)
    check_refused(lambda: mc.ReplayBuffer.load(saved), mc.SegmentCorrupt, "the content has changed since the save")


def test_a_save_with_any_bit_flipped_is_refused(saved):
    whole = saved.read_bytes()
    end = len(whole.rstrip(b"\0"))  # padding follows the checksum
    chance = random.Random(0)
    for at in [*chance.sample([*{*range(end)} - {*WAITS}], 40), end - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        saved.write_bytes(damaged)
        with pytest.raises(mc.SegmentCorrupt, match=str(saved)):
            mc.ReplayBuffer.load(saved)
    saved.write_bytes(whole)
    with mc.ReplayBuffer.load(saved) as replay:
        assert len(replay) == 5 and replay.sampler_state is not None


@pytest.mark.long
def test_a_sampler_loads_only_the_pages_that_it_touches(program, tmp_path):
    """So a replay can be larger than memory."""
    path = tmp_path / "replay"
    with mc.ReplayBuffer.create(spec_of(4096), 2048, path=path) as replay, replay.writer() as writer:  # 67 MB
        for first in range(0, 2048, 64):
            add_rows(writer, 4096, first, 64)
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    out = program(
        """
        import sys
        from marlcore import ReplayBuffer
        from marlcore.testing.rows import filled
        with ReplayBuffer.attach(sys.argv[1]) as replay:
            batch = replay.sampler(16, seed=0).sample()
            assert (batch.obs == filled(4096, batch.index)).all()
            inside, sizes = False, {}
            for line in open("/proc/self/smaps"):
                if "-" in line.split()[0]:
                    inside = line.rstrip().endswith(sys.argv[1])
                elif inside and line.split()[0] in ("Size:", "Rss:", "Anonymous:"):
                    sizes[line.split()[0]] = int(line.split()[1])
            print(sizes["Size:"] > 65_000, sizes["Rss:"] < 20_000, sizes["Anonymous:"])
        """,
        args=[path],
    ).finish()
    path.unlink()  # it is large
    assert out == "True True 0"
