"""`marlcore gc` removes what no living process holds, leaves everything else, and says which is which."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marlcore.cli import gc
from marlcore.kernels import cache
from marlcore.memory import Segment, survey_segments

HOLD = """
    import sys
    from marlcore.memory.segment import Segment
    path = sys.argv[1] if len(sys.argv) > 1 else None
    segment = Segment.create("gc", {}, 10_000, path=path)
    print(segment.path, flush=True)
    sys.stdin.read()
"""


def lines(text: str) -> dict[str, list[str]]:
    """The fields of each line by its name, which is that of a segment or "total"."""
    rows = [line.split("\t") for line in text.splitlines()]
    assert rows[-1][0] == "total" and len(rows[-1]) == 3
    assert all(len(row) == 5 for row in rows[:-1])
    return {row[3]: row[:3] + row[4:] for row in rows[:-1]} | {"total": rows[-1][1:]}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of kernels, which is not stale: the only one that `marlcore gc` finds."""
    monkeypatch.setattr(cache, "roots", lambda: [tmp_path / "cache" / "kernels"])
    return cache.open_directory("cpu")


@pytest.fixture
def collected(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: Path) -> Callable[..., dict[str, list[str]]]:
    """collected(*arguments): what `marlcore gc` printed of a directory in place of /dev/shm."""

    def collect(*arguments: str) -> dict[str, list[str]]:
        assert gc.main([*arguments], tmp_path) == 0
        return lines(capsys.readouterr().out)

    return collect


def test_what_a_killed_process_left_is_removed_but_by_a_dry_run(program, collected, tmp_path):
    owner = program(HOLD, args=[tmp_path / "marlcore-left"])
    left = Path(owner.line())
    owner.kill()
    for _ in range(2):
        segments = collected("--dry-run")
        state, nbytes, age, pids = segments["marlcore-left"]
        assert (state, int(nbytes), pids) == ("orphaned", 16_384, "-") and int(age) >= 0
        assert segments["total"] == ["16384", "1"] and left.exists()
    assert collected()["marlcore-left"][:2] == ["removed", "16384"]
    assert not left.exists() and collected() == {"total": ["0", "0"]}


def test_a_held_segment_is_kept_and_its_processes_named(program, collected, tmp_path):
    """A segment whose creator has died is kept for its users."""
    owner = program(HOLD, args=[tmp_path / "marlcore-live"])
    path = owner.line()
    for arguments in ([], ["--dry-run"]):
        segments = collected(*arguments)
        state, nbytes, _, pids = segments["marlcore-live"]
        assert (state, int(nbytes), pids) == ("kept", 16_384, str(owner.pid))
        assert segments["total"] == ["0", "0"]
    other = Segment.attach(path)
    assert collected()["marlcore-live"][3] == ",".join(map(str, sorted([owner.pid, os.getpid()])))
    owner.kill()
    assert collected()["marlcore-live"][::3] == ["kept", str(os.getpid())]
    other.close()
    assert collected()["marlcore-live"][0] == "removed"


def test_a_stale_cache_is_removed_but_by_a_dry_run(collected, kept):
    stale = cache.open_directory("other")
    (stale / "kernel.nbc").write_bytes(bytes(1000))
    next(stale.glob("package-*")).unlink()
    (stale / "package-0").symlink_to("/nowhere")
    for arguments, verb in (["--dry-run"], "orphaned"), ([], "removed"):
        assert stale.exists()
        rows = collected(*arguments)
        nbytes = str(1000 + len("/nowhere"))
        assert rows[str(stale)][:2] == [verb, nbytes] and rows["total"] == [nbytes, "1"] and len(rows) == 2
    assert not stale.exists() and kept.exists() and collected() == {"total": ["0", "0"]}


def test_a_dry_run_takes_no_lock_in_anybodys_way(collected, tmp_path, monkeypatch):
    monkeypatch.setattr("marlcore.memory.survey.try_lock", lambda *_: pytest.fail("a dry run took a lock"))
    (tmp_path / "marlcore-left").touch()
    assert collected("--dry-run")["marlcore-left"][0] == "orphaned"


def test_what_is_no_segment_is_left_and_not_listed(collected, tmp_path):
    (tmp_path / "marlcore-directory").mkdir()
    for name in ("precious", "marlcore-directory/marlcore-inside", "other-marlcore-x", "marlcore"):
        (tmp_path / name).write_text("precious")
    (tmp_path / "marlcore-link").symlink_to(tmp_path / "precious")
    (tmp_path / "marlcore-dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "marlcore-fifo", 0o600)
    before = sorted(tmp_path.rglob("*"))
    assert collected() == {"total": ["0", "0"]}
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_of_another_user_is_left(tmp_path, monkeypatch):
    (tmp_path / "marlcore-theirs").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    assert survey_segments(tmp_path, remove=True) == []
    assert (tmp_path / "marlcore-theirs").exists()


@pytest.mark.parametrize("content", [b"", b"marlcore", b"marlcore" + b"\xff" * 5000, b"x" * 10_000])
def test_an_orphan_is_removed_whatever_it_holds(collected, tmp_path, content):
    (tmp_path / "marlcore-broken").write_bytes(content)
    assert collected()["marlcore-broken"][0] == "removed"
    assert not (tmp_path / "marlcore-broken").exists()


@pytest.mark.parametrize("name", [b"marlcore-a\nkept\t1", b"marlcore-\xff", b"marlcore-\xc3\xa4", b"marlcore- \x1b[2J"])
def test_a_name_of_any_bytes_is_one_field_of_one_line_of_ascii(collected, tmp_path, name):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    ((shown, fields),) = (item for item in collected().items() if item[0] != "total")
    assert fields[0] == "removed" and shown.isascii() and shown.isprintable()


def test_a_terminal_gets_a_table_that_says_the_same(tmp_path, capsys, monkeypatch, kept):
    (tmp_path / "marlcore-left").write_bytes(bytes(8192))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    assert gc.main(["--dry-run"], tmp_path) == 0
    out = capsys.readouterr().out
    assert "marlcore-left" in out and "8192" in out
    assert "orphaned: 1 of 1 segments, 0 kernel caches, 8,192 bytes" in out


def test_the_command_removes_dead_segments_alone(program):
    live, dead = program(HOLD), program(HOLD)
    live_path, dead_path = Path(live.line()), Path(dead.line())
    dead.kill()
    command = [sys.executable, "-W", "error", "-m", "marlcore", "gc"]
    segments = lines(subprocess.check_output(command, text=True))
    assert segments[live_path.name][::3] == ["kept", str(live.pid)]
    assert live_path.exists() and not dead_path.exists()
    live.finish()  # it lets go of its segment


@pytest.mark.long
@pytest.mark.parametrize("command", ["gc --dry-run", "doctor --json", "--version"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_with_closed_standard_streams(command, closed):
    """Python sets closed streams to None, and the next opened files would get their numbers."""
    run = f"exec {sys.executable} -W error -m marlcore {command} {closed}"
    done = subprocess.run(["sh", "-c", run], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert bool(done.stdout) == (closed == "2>&-")


def test_what_a_terminal_cannot_show_is_a_question_mark():
    """A table that is cut off has an ellipsis, and a run may be in a directory that is named by any bytes.

    And a command needs neither torch nor Numba for that.
    """
    code = "import sys, marlcore.__main__, marlcore.cli.gc; print('a\\u2026\\udcff')\n"
    code += "assert not {'torch', 'numba'} & sys.modules.keys()"
    for encoding in ("ascii", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        shown = subprocess.check_output([sys.executable, "-c", code], env=environment).decode()
        assert shown in ("a??\n", "a\u2026?\n")
