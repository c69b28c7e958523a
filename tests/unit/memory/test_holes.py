"""Files with holes, and headers that promise too much: no process gets a signal, and no memory is allocated in vain."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from marlcore import Field, ReplayBuffer, SegmentCorrupt, TransitionSpec
from marlcore.memory import File, Segment

SPEC = TransitionSpec(Field((), "float32"), Field((), "int64"))


def sparse(path: Path, nbytes: int = 1 << 20) -> Path:
    """Makes a copy of a segment of mostly zeros, with holes."""
    Segment.create("test", {}, nbytes, path=path.with_suffix(".whole")).close()
    with path.open("wb") as file:
        file.write(path.with_suffix(".whole").read_bytes()[:4096])
        file.truncate(nbytes + 4096)
    path.chmod(0o600)
    path.with_suffix(".whole").unlink()
    if 512 * path.stat().st_blocks >= nbytes:
        pytest.skip("this file system has no holes")
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    path = Path("/dev/shm") / f"holes{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def test_attaching_fills_the_holes_of_a_file(tmp_path: Path, shared: Path):
    for path in (tmp_path / "file", shared):
        with closing(Segment.attach(sparse(path))) as found:
            assert 512 * path.stat().st_blocks >= found.nbytes
            assert not found.body.any()
        path.unlink()


def test_a_file_with_holes_is_not_looked_at(shared: Path):
    """Reading a hole in /dev/shm would take memory too."""
    with pytest.raises(SegmentCorrupt, match=r"expected a file without holes, got holes of 1048576 bytes; .*=never"):
        Segment.attach(sparse(shared), writable=False)
    assert 512 * shared.stat().st_blocks == 4096


FILL = """
import sys
from marlcore import ReplayBuffer, SharedMemoryFull
try:
    with ReplayBuffer.attach(sys.argv[1]) as replay, replay.writer() as writer:
        while True:
            writer.add(1.0, 1, 1.0)
except SharedMemoryFull as full:
    print(full)
"""


@pytest.mark.long
@pytest.mark.parametrize("free_is_known", [True, False])
def test_holes_that_cannot_be_filled_are_an_error(small_tmpfs, program, free_is_known):
    """Otherwise a later write to a hole would find the disk full, and SIGBUS would end its process."""
    whole = small_tmpfs.parent / "save"
    ReplayBuffer.create(SPEC, 100_000, path=whole).close()
    subprocess.run(["cp", "--sparse=always", whole, small_tmpfs / "copy"], check=True)
    (small_tmpfs / "copy").chmod(0o600)
    unknown = "from marlcore.memory import existing_file as f; f.free_bytes = lambda directory: 1 << 40"
    said = program("" if free_is_known else unknown, FILL, args=[small_tmpfs / "copy"]).finish()
    assert said.startswith(f"{small_tmpfs}: ") and "bytes asked for" in said and "\n" not in said


def test_compression_is_not_taken_for_holes(tmp_path: Path, monkeypatch):
    """Compressed files have fewer blocks than bytes; SEEK_HOLE reports allocated but unwritten pages as holes."""
    path = tmp_path / "file"
    with closing(Segment.create("test", {}, 1 << 20, path=path)) as made:
        made.body[:] = 1
    monkeypatch.setattr(File, "allocate", lambda *_: pytest.fail("there is nothing to allocate"))
    stat = os.fstat
    with monkeypatch.context() as compressed:
        compressed.setattr(os, "fstat", lambda fd: _with_few_blocks(stat(fd)))
        for writable in (True, False):
            Segment.attach(path, writable=writable).close()
    with closing(Segment.create("test", {}, 1 << 20)) as made:
        for writable in (True, False):
            Segment.attach(made.path, writable=writable).close()


def _with_few_blocks(status: os.stat_result) -> SimpleNamespace:
    names = [name for name in dir(status) if name.startswith("st_")]
    return SimpleNamespace(**{name: getattr(status, name) for name in names} | {"st_blocks": 1})


def test_memory_does_not_grow_with_the_number_of_lanes(tmp_path: Path):
    """200,000 lanes once took 120 MB in each process."""
    with ReplayBuffer.create(SPEC, 400_000, 200_000, path=tmp_path / "lanes"):
        before = private()
        with ReplayBuffer.attach(tmp_path / "lanes") as replay, replay.writer(199_999) as writer:
            writer.add(1.0, 1, 1.0)
            assert len(replay) == 1
            assert private() - before < 10e6


def private() -> int:
    """Returns the bytes of memory that belong to this process alone."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(lines["Anonymous"].split()[0])


LIMITED = """
import os, resource, sys
from marlcore import MarlcoreError, ReplayBuffer
limit, most = (resource.RLIMIT_NOFILE, 24) if sys.argv[2] == "files" else (resource.RLIMIT_AS, 64 << 20)
if limit == resource.RLIMIT_AS:  # room for what Python itself may ask for, none for the replay's 128 MB
    with open("/proc/self/statm") as sizes:
        most += resource.getpagesize() * int(sizes.read().split()[0])
resource.setrlimit(limit, (most, most))
held = []
while limit == resource.RLIMIT_NOFILE:
    try:
        held.append(os.dup(0))
    except OSError:
        break
try:
    ReplayBuffer.attach(sys.argv[1])
except MarlcoreError as error:
    said = str(error)
    for fd in held:
        os.close(fd)
    print(type(error).__name__, said)
"""


@pytest.mark.long
@pytest.mark.parametrize(("limit", "says"), [("files", "MarlcoreError"), ("memory", "SharedMemoryFull")])
def test_a_process_at_its_limits_gets_one_clear_line(tmp_path: Path, program, limit: str, says: str):
    """test_crash_points.py covers the other calls that fail at a limit."""
    with ReplayBuffer.create(SPEC, 4_000_000, path=tmp_path / "replay"):
        got = program(LIMITED, args=[tmp_path / "replay", limit]).finish()
    assert got.startswith(says) and "ulimit" in got and "\n" not in got, got


def test_a_loop_of_links_is_an_error_of_ours(tmp_path: Path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "inside"):
        with pytest.raises(SegmentCorrupt, match=r"Too many levels of symbolic links"):
            ReplayBuffer.attach(path)
        with pytest.raises(ValueError, match=r"^path: expected a file "):
            ReplayBuffer.create(SPEC, 10, path=path)
