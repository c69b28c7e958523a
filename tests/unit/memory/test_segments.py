"""Segments appear whole or not at all, are used only after every check, and never outlive their users.

The fixture `leaves_nothing_behind` sees each segment and each descriptor that a test leaves.
"""

import errno
import os
import pickle
import stat
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from refused import check_refused
from seams import patch

import marlcore as mc
from marlcore.cgroup import MemoryLimit
from marlcore.memory import SHM_DIR, File, Segment, SegmentHandle, replace_file, sweep, try_lock
from marlcore.memory.space import notice_spill

DESCRIPTION = {"kind": "test", "rows": 3}

HOLD = """
    import sys, time
    from marlcore.memory.segment import Segment
    from marlcore.memory import sweep
"""


@pytest.fixture
def segment():
    with_name = Segment.create("test", DESCRIPTION, 10_000)
    yield with_name
    with_name.close()


def test_a_new_segment_is_zeroed_and_whole_pages(segment):
    assert segment.path.name == f"marlcore-test-{segment.nonce:016x}"
    assert len(segment.body) == 12_288 and segment.body.dtype == np.uint8
    assert segment.body.ctypes.data % 4096 == 0 and not segment.body.any()
    status = segment.path.stat()
    assert segment.nbytes == status.st_size == 12_288 + 4096
    assert status.st_blocks * 512 >= segment.nbytes, "allocated, so that a full file system is no SIGBUS later"


@pytest.mark.parametrize("mask", [0, 0o022])
def test_a_segment_is_for_its_user_alone_whatever_the_umask_is(mask):
    before = os.umask(mask)
    try:
        made = Segment.create("test", DESCRIPTION, 10)
    finally:
        os.umask(before)
    status = made.path.stat()
    made.close()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())


BY = {
    "handle": lambda segment: segment.handle,
    "pickled handle": lambda segment: pickle.loads(pickle.dumps(segment.handle)),
    "text": lambda segment: str(segment.path),
    "path": lambda segment: segment.path,
}


@pytest.mark.parametrize("by", BY)
def test_what_one_mapping_writes_the_other_reads(segment, by):
    with closing(Segment.attach(BY[by](segment))) as other:
        other.body[77] = 5
        assert segment.body[77] == 5
        assert (other.description, other.handle) == (DESCRIPTION, segment.handle)


def test_a_closing_creator_removes_the_name_alone(segment):
    Segment.attach(segment.handle).close()
    assert segment.path.exists()
    with closing(Segment.attach(segment.handle)) as other:
        segment.body[0] = 9
        segment.close()
        assert not segment.path.exists()
        assert other.body[0] == 9
        check_refused(lambda: Segment.attach(segment.handle), mc.SegmentNotFound, "no such segment")


def test_a_forgotten_segment_cleans_up_after_itself():
    made = Segment.create("test", DESCRIPTION, 10)
    path = made.path
    del made
    assert not path.exists()


def test_a_closed_segment_says_so_and_its_views_live(segment):
    view = segment.body[:4]
    segment.close()
    segment.close()
    view[:] = 3
    assert view.tolist() == [3, 3, 3, 3]
    for call in (segment.check_open, lambda: segment.lock(1)):
        check_refused(call, mc.ClosedError, "it was closed")


def test_unlink_takes_the_name_and_is_harmless_when_repeated(segment):
    segment.unlink()
    segment.unlink()
    assert not segment.path.exists()
    segment.body[0] = 1
    segment.close()
    segment.unlink()


def test_a_segment_in_a_file_stays_until_it_is_unlinked(tmp_path):
    with closing(Segment.create("test", DESCRIPTION, 10, path=tmp_path / "file")) as made:
        made.body[0] = 7
    with closing(Segment.attach(made.handle)) as again:
        assert again.body[0] == 7
        again.unlink()
    assert not (tmp_path / "file").exists()


def test_a_handle_is_stale_when_another_took_the_name(tmp_path):
    first = Segment.create("test", DESCRIPTION, 10, path=tmp_path / "file")
    first.unlink()
    second = Segment.create("test", DESCRIPTION, 10, path=tmp_path / "file")
    check_refused(lambda: Segment.attach(first.handle), mc.StaleHandle, "another one has its name")
    first.unlink()
    first.close()
    first.unlink()
    assert second.path.exists(), "unlink of the first removed the second"
    second.close()


def create(**arguments: object) -> Callable[[Path], object]:
    return lambda path: Segment.create(**{"name": "test", "description": DESCRIPTION, "body_bytes": 10} | arguments)


def attach(handle_of: Callable[[SegmentHandle], object]) -> Callable[[Path], object]:
    """Returns a function that attaches by a changed handle of a file."""

    def call(path: Path) -> None:
        with closing(Segment.attach(path)) as segment:
            handle = segment.handle
        Segment.attach(handle_of(handle))

    return call


REFUSED: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    *((create(name=name), ValueError, f"name: expected letters, digits, '_' and '.', got {name!r}")
      for name in ("", "a/b", "../up", "a b", "a-b", "a\0b", "ä", "a\n", None)),
    (lambda path: create(path=path)(path), ValueError, "path: expected a file that does not exist yet"),
    (attach(lambda handle: replace(handle, layout=handle.layout ^ 1)), mc.LayoutMismatch, "differs from the handle's"),
    (lambda path: Segment.attach(path.with_name("nothing")), mc.SegmentNotFound, "no such segment"),
    (attach(lambda handle: replace(handle, path=f"{handle.path}-")), FileNotFoundError, "no such segment"),
    (lambda path: File().open("/proc/self/fd/-1", os.O_RDONLY), FileNotFoundError, "/proc/self/fd/-1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "says"), REFUSED)
def test_refuses(call, error, says, unmapped):
    content = unmapped.read_bytes()
    check_refused(lambda: call(unmapped), error, says)
    assert unmapped.read_bytes() == content


@pytest.mark.parametrize(("owner", "step"), [(File, "link"), (os, "pwrite"), (os, "posix_fallocate")])
def test_a_segment_that_cannot_be_made_leaves_nothing(owner, step, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise OSError("disk on fire")

    monkeypatch.setattr(owner, step, fails)
    for path in (None, tmp_path / "file"):
        check_refused(partial(Segment.create, "test", DESCRIPTION, 10, path=path), OSError, "disk on fire")
    assert list(tmp_path.iterdir()) == []


def test_a_segment_is_whole_after_short_writes(tmp_path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:50], at))
    data = np.arange(5000).astype(np.uint8)
    Segment.create("test", {"a": 1}, 5000, path=tmp_path / "file", fill=lambda put: put(0, data)).close()
    with closing(Segment.attach(tmp_path / "file")) as found:
        assert found.description == {"a": 1} and (found.body[:5000] == data).all()


@pytest.mark.parametrize("replaces", [False, True], ids=["create", "replace_file"])
def test_a_nameless_segment_locked_by_another_is_given_up(tmp_path, replaces):
    """Another process opened it through /proc; a sweep would remove the segment without its own lock."""
    thief: list[int] = []

    def steal(put: object) -> None:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        nameless = next(link for link in links if os.path.realpath(link).startswith(f"{tmp_path}/#"))
        thief.append(os.open(nameless, os.O_RDWR))
        assert try_lock(thief[0], 0, exclusive=True)

    with pytest.raises(mc.MarlcoreError, match="another process has locked the segment before it has a name"):
        if replaces:
            replace_file(tmp_path / "file", {}, 10, steal)
        else:
            Segment.create("test", {}, 10, path=tmp_path / "file", fill=steal)
    os.close(thief[0])
    assert not list(tmp_path.iterdir())


def check_full(says: str, body_bytes: int = 10, **options: object) -> None:
    with pytest.raises(mc.SharedMemoryFull, match=says) as full:
        Segment.create("test", DESCRIPTION, body_bytes, **options)
    assert isinstance(full.value, MemoryError)


def test_too_much_shared_memory_is_an_error_with_advice():
    file_system = os.statvfs("/dev/shm")
    too_much = file_system.f_blocks * file_system.f_frsize + 4096
    for nbytes in (too_much, 2**64):  # no header holds the latter
        check_full(rf"/dev/shm: {nbytes + 4096} bytes asked for, .*--shm-size", nbytes)


def test_more_than_the_control_group_leaves_is_an_error(monkeypatch):
    """Above that limit the kernel kills processes."""
    monkeypatch.setattr("marlcore.cgroup.memory_limit", lambda: MemoryLimit(1 << 30, 16_383))
    check_full(r"/dev/shm: 16384 bytes asked for, 16383 free; .*--memory", 10_000)


@pytest.mark.parametrize("free_is_known", [True, False])
def test_a_full_file_system_is_an_error(small_tmpfs, monkeypatch, free_is_known):
    if not free_is_known:
        patch(monkeypatch, "memory", free_bytes=lambda directory: 1 << 40)
    check_full(f"^{small_tmpfs}: .* bytes asked for", 2 << 20, path=small_tmpfs / "file")
    assert list(small_tmpfs.iterdir()) == []
    Segment.create("test", DESCRIPTION, 1 << 19, path=small_tmpfs / "file").close()


@pytest.mark.parametrize("has_tmpfile", [True, False])
def test_a_segment_may_spill_into_the_temporary_directory(tmp_path, monkeypatch, caplog, has_tmpfile):
    """Its file never keeps a name; other processes attach through its creator's descriptor."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    patch(monkeypatch, "memory", free_bytes=lambda directory: 0 if directory == SHM_DIR else 1 << 20)
    notice_spill.cache_clear()
    opened = File.open

    def without_tmpfile(file, path, flags, *mode):
        if not has_tmpfile and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        opened(file, path, flags, *mode)

    monkeypatch.setattr(File, "open", without_tmpfile)
    made = Segment.create("test", DESCRIPTION, 10_000, spill=True)
    again = Segment.create("test", DESCRIPTION, 10, spill=True)
    assert list(tmp_path.iterdir()) == []
    assert os.readlink(made.path).startswith(str(tmp_path))
    assert [record.getMessage() for record in caplog.records] == [
        f"/dev/shm has no room: buffers are put into unlinked files in {tmp_path}"
    ]
    with closing(Segment.attach(made.handle)) as other:
        made.body[9_999] = 7
        assert other.body[9_999] == 7 and made.lock(1) is not None and other.description == DESCRIPTION
        made.unlink()
    made.close()
    for gone in (made.handle, replace(again.handle, nonce=1)):
        with pytest.raises((mc.SegmentNotFound, mc.StaleHandle)):
            Segment.attach(gone)
    again.close()
    for path, spill in ((None, False), (SHM_DIR / "named", True)):
        check_full(r"^/dev/shm: .* bytes asked for, 0 free; [^;]*$", path=path, spill=spill)
    check_full(rf"^/dev/shm: .*; {tmp_path}: 2101248 bytes asked for, 1048576 free$", 2 << 20, spill=True)

    def fill(put):
        raise OSError(errno.ENOSPC, "No space left on device")

    check_full(f"^{tmp_path}: ", fill=fill, spill=True)


def rewrite(path: Path, at: int, data: bytes, checksum: bool = False) -> None:
    """Changes bytes of a header, and corrects its checksum if asked to."""
    with path.open("r+b") as file:
        raw = bytearray(file.read(4096))
        raw[at : at + len(data)] = data
        if checksum:
            raw[12:16] = bytes(4)
            raw[12:16] = struct.pack("<I", zlib.crc32(raw))
        file.seek(0)
        file.write(raw)


def header(at: int, layout: str, value: int) -> Callable[[Path], object]:
    return lambda path: rewrite(path, at, struct.pack(layout, value), checksum=True)


def of_length(length: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:length].ljust(length, b"\0"))


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Replaces the file by something else; the old file gets the name `moved`."""

    def act(path: Path) -> None:
        path.rename(path.with_name("moved"))
        make(path)

    return act


ANOTHER = "expected a marlcore segment, got another file"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "checksum": (lambda path: rewrite(path, 12, bytes(4)), "checksum does not match"),
    "version": (header(8, "<I", 99), "expected layout version 3, got 99"),
    **{
        f"header of {n}": (header(16, "<Q", n), "header's length")
        for n in (0, 1, 4095, 4097, 1 << 27, (1 << 64) - 4096)
    },
    "long header": (header(16, "<Q", 1 << 20), "ends inside its header"),
    **{f"body of {n}": (header(24, "<Q", n), "expected a file of") for n in (0, 4096, 12_288, 20_480, (1 << 64) - 1)},
    **{f"description of {n}": (header(40, "<Q", n), "") for n in (4096 - 47, 1 << 40, (1 << 64) - 1)},
    **{f"{n} bytes": (of_length(n), "") for n in (0, 1, 47, 48, 4095, 4096, 8192, 16_383, 16_385, 20_480)},
    "empty": (lambda path: path.write_bytes(b""), ANOTHER),
    "text": (lambda path: path.write_bytes(b"x" * 8192), ANOTHER),
    "magic alone": (lambda path: path.write_bytes(b"marlcore"), ANOTHER),
    "other magic": (lambda path: path.write_bytes(b"marlcorf" + bytes(8192)), ANOTHER),
    **{f"{mode:o}": (partial(Path.chmod, mode=mode), "mode 0600") for mode in (0o640, 0o604, 0o666, 0o610, 0o601)},
    "link to a good one": (instead(lambda path: path.symlink_to(path.with_name("moved"))), ""),
    "fifo": (instead(lambda path: os.mkfifo(path, 0o600)), "expected a regular file"),
    "directory": (instead(lambda path: path.mkdir(0o700)), ""),
}


@pytest.fixture
def unmapped(segment, tmp_path):
    """A copy of a segment that no process has mapped, so that a sweeper can lock it."""
    path = tmp_path / "copy"
    path.touch(mode=0o600)
    path.write_bytes(segment.path.read_bytes())
    return path


@pytest.mark.parametrize(("make_wrong", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused(make_wrong, says, unmapped):
    make_wrong(unmapped)
    check_refused(lambda: Segment.attach(unmapped), mc.SegmentCorrupt, says)


def test_a_file_of_another_user_is_refused(segment, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    check_refused(lambda: Segment.attach(segment.path), mc.SegmentCorrupt, "of this user alone")


@pytest.mark.parametrize("then", ["leaves it", "removes it", "stops"])
def test_a_segment_under_a_sweeper_is_there_by_its_name(unmapped, monkeypatch, then):
    sweeper = os.open(unmapped, os.O_RDWR)
    assert try_lock(sweeper, 0, exclusive=True)

    def nap(seconds):
        if then == "removes it":
            unmapped.unlink(missing_ok=True)
        elif then == "leaves it":
            os.close(sweeper)

    monkeypatch.setattr("time.sleep", nap)
    if then == "stops":
        patch(monkeypatch, "memory", SWEEP_S=0.01)
    if then == "leaves it":
        Segment.attach(unmapped).close()
    else:
        says = "no such segment" if then == "removes it" else "another process has locked the segment to remove it"
        check_refused(lambda: Segment.attach(unmapped), mc.SegmentNotFound, says)
        os.close(sweeper)


def test_sweep_removes_a_segment_once_no_process_has_it(segment, program):
    assert segment.path.name not in sweep()
    owner = program(HOLD, "s = Segment.create('owned', {}, 10); print(s.path, flush=True); sys.stdin.read()")
    path = Path(owner.line())
    user = program(HOLD, "s = Segment.attach(sys.argv[1]); print('ready', flush=True); sys.stdin.read()", args=[path])
    assert user.line() == "ready"
    for process in (owner, user):
        assert path.name not in sweep() and path.exists()
        process.kill()
    assert path.exists()
    assert path.name in sweep() and not path.exists()


def test_sweep_leaves_a_segment_of_which_only_views_are_left(program):
    owner = program(
        HOLD,
        "s = Segment.create('v', {}, 10); b = s.body; print(s.path, flush=True); sys.stdin.readline()\n"
        "s._file.keep_name(); s.close(); print('closed', flush=True); sys.stdin.read()",
    )
    path = Path(owner.line())
    owner.tell()
    assert owner.line() == "closed"
    assert path.name not in sweep()
    owner.kill()
    assert path.name in sweep()


def test_sweep_leaves_links_fifos_and_other_names(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    link, fifo, other = (Path("/dev/shm") / name for name in ("marlcore-link", "marlcore-fifo", "other-marlcore-x"))
    link.symlink_to(target)
    os.mkfifo(fifo, 0o600)
    other.touch()
    swept = sweep()
    kept = [link.is_symlink(), fifo.exists(), other.exists()]
    for path in (link, fifo, other):
        path.unlink()
    assert not {link.name, fifo.name, other.name} & set(swept) and all(kept)
    assert target.read_text() == "precious"


def test_a_fork_that_lingers_holds_no_segment(program):
    """The fork's views keep their values, and its writes stay private."""
    owner = program(HOLD, """
        import os
        from marlcore.memory.native import Words
        segment = Segment.create("lingering", {}, 1 << 20)
        body, words = segment.body, Words(segment.body)
        body[8:] = 7
        written, done = os.pipe()
        if os.fork() == 0:
            words.store(0, 5)
            body[8] = 6
            os.write(done, b"x")
            sys.stdin.readline()
            print(words.load(0), body[8], body[-1], flush=True)
            os._exit(0)
        os.read(written, 1)
        print(segment.path, words.load(0), body[8], flush=True)
        time.sleep(600.0)
    """)  # fmt: skip
    path, *kept = owner.line().split()
    owner.kill()
    assert kept == ["0", "7"]
    assert Path(path).name in sweep()
    owner.tell()
    assert owner.line() == "5 6 7"


def test_locks_are_of_one_byte_and_of_one_holder(segment):
    with closing(segment.lock(2)), closing(segment.lock(1)):
        assert segment.lock(1) is None
    segment.lock(1).close()


HERE = """
import sys
from marlcore.memory import Segment, survey_segments
segment = Segment.create("here", {}, 8)
print(segment.path, *[file.name for file in survey_segments()])
"""


def test_a_node_may_have_a_directory_of_its_own(tmp_path, monkeypatch, program):
    """Its processes create, list and sweep segments only there."""
    monkeypatch.setenv("MARLCORE_SHM_DIR", str(tmp_path))
    left = program(HERE, "import os; os._exit(0)")
    left.finish()
    path, *names = program(HERE).finish().split()
    assert os.path.dirname(path) == str(tmp_path) and names == [os.path.basename(path)], "the first one was swept"
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("MARLCORE_SHM_DIR", "")
    assert program(HERE).finish().startswith("/dev/shm/")


@pytest.mark.parametrize("wrong", ["relative", "/nowhere/at/all"])
def test_a_directory_that_does_not_exist_is_refused(wrong, monkeypatch):
    patch(monkeypatch, "memory", SHM_DIR=Path(wrong))
    says = f"MARLCORE_SHM_DIR: expected the absolute path of a directory, got '{wrong}'"
    check_refused(lambda: Segment.create("x", {}, 8), ValueError, says)
