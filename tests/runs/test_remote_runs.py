"""Runs whose directory is an address of fsspec: everything is there at the end, and another machine may go on."""

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hunt import HUNT
from refused import check_refused
from whole_runs import SMALL, changed, checkpoint, metrics_of, steps_of

import marlcore as mc
from marlcore.record import RemoteCopy, described_run, fetch_run

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

ADDRESS = "memory://bucket/demo"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system in memory; runs' local directories lie in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)
    files.store.clear()


def train(**changes: Any) -> mc.Result:
    resume, env = changes.pop("resume", None), changes.pop("env", HUNT)
    config = changed(SMALL, **{"run_dir": None if resume else ADDRESS, "total_steps": 300, **changes})
    return mc.train(env, "dqn", config, progress=False, resume=resume)


def held(files: Any, address: str = ADDRESS) -> dict[str, bytes]:
    _, root = fsspec.core.url_to_fs(address)
    return {name.removeprefix(f"{root}/"): files.cat_file(name) for name in files.find(root)}


def of(run_dir: Path) -> dict[str, bytes]:
    files = (path for path in run_dir.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in files}


def test_an_address_has_the_whole_run_and_it_goes_on_from_there(memory: Any) -> None:
    first = train(replay={"save": True})
    assert first.run_dir.parent == Path("runs").absolute()
    assert held(memory) == of(first.run_dir)
    assert {"config.json", "metrics.csv", "checkpoints/run.json", "checkpoints/agent_0.replay"} <= held(memory).keys()
    rows, before = metrics_of(first.run_dir), checkpoint(first.run_dir)
    more = train(total_steps=600, resume=ADDRESS, replay={"save": True})
    assert more.run_dir != first.run_dir and held(memory) == of(more.run_dir)
    assert 600 <= steps_of(more.run_dir) < 604 and metrics_of(more.run_dir)[: len(rows)] == rows
    assert checkpoint(more.run_dir)["version"] > before["version"]
    last = train(total_steps=700, resume=ADDRESS)
    assert "checkpoints/agent_0.replay" not in held(memory) and held(memory) == of(last.run_dir)


def test_a_directory_is_an_address_too(memory: Any, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/elsewhere"
    result = train(run_dir=address, env="treasure_hunt")
    assert described_run(address, trust=True)[::2] == ("treasure_hunt", described_run(result.run_dir)[2])
    assert held(fsspec.filesystem("file"), address) == of(result.run_dir)


def test_what_changes_is_copied_and_what_goes_is_removed(memory: Any, tmp_path: Path) -> None:
    """Half-written files are not copied, and the progress is never newer than its metrics."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    names = "metrics.csv", "checkpoints/run.json", "checkpoints/a.pt", "checkpoints/a.replay", "checkpoints/.a.pt.1.new"
    for name in names:
        (run / name).write_bytes(b"1")
    with RemoteCopy(ADDRESS) as copy:
        copy.follow(run)
        order: list[str] = []
        put, pipe = memory.put_file, memory.pipe_file
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "put_file", lambda path, to: (order.append(Path(to).name), put(path, to)))
            patch.setattr(memory, "pipe_file", lambda to, data: (order.append(Path(to).name), pipe(to, data)))
            copy.push()
        assert order == ["a.replay", "metrics.csv", "a.pt", "run.json"] and held(memory).keys() == {*names[:-1]}
        (run / "checkpoints" / "a.replay").unlink()
        (run / "metrics.csv").write_bytes(b"12")
        copy.push()
        assert held(memory) == {"metrics.csv": b"12", "checkpoints/run.json": b"1", "checkpoints/a.pt": b"1"}
        (run / "late").write_bytes(b"3")
    assert held(memory)["late"] == b"3"


def test_a_checkpoint_there_is_never_newer_than_its_replay(memory: Any, tmp_path: Path) -> None:
    """Otherwise a run killed between the two could not resume: its priorities would belong to other rows."""
    (tmp_path / "a.pt").write_bytes(b"1")
    (tmp_path / "a.replay").write_bytes(b"1")

    def meanwhile(path: str, to: str) -> None:
        (tmp_path / "a.pt").write_bytes(b"22")
        files.put_file(path, to)

    files: Any = fsspec.filesystem("memory", skip_instance_cache=True)
    with RemoteCopy(ADDRESS) as copy, pytest.MonkeyPatch.context() as patch:
        copy._path = tmp_path
        patch.setattr(memory, "put_file", meanwhile)
        copy.push()
        assert held(memory) == {"a.pt": b"1", "a.replay": b"1"}
        copy._path = None


def test_what_is_not_the_runs_own_stays_there(memory: Any, tmp_path: Path) -> None:
    for name in ("config.json", "old"):
        memory.pipe_file(f"/bucket/demo/{name}", b"1")
    fetched = fetch_run(ADDRESS, tmp_path)
    with RemoteCopy(ADDRESS, fetched) as copy:
        memory.pipe_file("/bucket/demo/another's", b"1")
        (fetched / "old").unlink()
        copy.follow(fetched)
    assert held(memory) == {"config.json": b"1", "another's": b"1"}


def test_a_place_that_was_removed_is_told_and_filled_again(memory: Any, tmp_path: Path) -> None:
    place, run = tmp_path / "there", tmp_path / "run"
    run.mkdir()
    (run / "config.json").touch()
    with RemoteCopy(f"file://{place}") as copy:
        copy.follow(run)
        copy.push()
        shutil.rmtree(place)
        (run / "late").touch()
        with pytest.raises(FileNotFoundError):
            copy.push()
    assert {path.name for path in place.iterdir()} == {"config.json", "late"}


def test_a_run_that_does_not_go_on_leaves_no_copy(memory: Any) -> None:
    first = train()
    with pytest.raises(ValueError, match="total_steps"):
        train(total_steps=200, resume=ADDRESS)
    assert [*Path("runs").absolute().iterdir()] == [first.run_dir]


@pytest.mark.parametrize("name", ["../outside", "checkpoints/../../outside", "/outside"])
def test_a_file_of_no_run_is_not_fetched(name: str, memory: Any, tmp_path: Path) -> None:
    """The files at an address, and their names, are untrusted."""
    for each in ("config.json", name):
        memory.store[f"/bucket/demo/{each}"] = memory.open("/file", "wb")
    with pytest.raises(ValueError, match=rf"resume: .*expected files of a run, got .*{name}"):
        fetch_run(ADDRESS, tmp_path / "runs")
    assert [*tmp_path.iterdir()] == [tmp_path / "runs"] and not [*(tmp_path / "runs").iterdir()]


def test_a_copy_that_fails_says_where_the_run_is(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no way there")

    monkeypatch.setattr(memory, "put_file", fail)
    with pytest.raises(OSError, match=r"run_dir: memory://bucket/demo lacks the last changes .*no way there.*; /.*"):
        train()
    (run_dir,) = Path("runs").iterdir()
    assert steps_of(run_dir) >= 300


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a run already": (train, ValueError, f"run_dir: expected a new or empty directory, got {ADDRESS!r}, which holds f"),
    "an unknown file system": (
        partial(train, run_dir="nosuch://x"), ValueError, "run_dir: expected an address that fsspec knows, got 'nosuch",
    ),
    "no run": (partial(train, resume="memory://x"), ValueError, "resume: expected the address of a run, got 'memory:"),
    "code": (lambda: described_run(ADDRESS), ValueError, "trust: expected trust=True or --trust for a remote run"),
    "seeds": (
        lambda: mc.train_seeds(HUNT, "dqn", changed(SMALL, run_dir=ADDRESS), [0, 1]), ValueError,
        "run_dir: expected a directory of this machine, got 'memory://bucket/demo'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_address_that_cannot_be_is_refused(case: str, memory: Any) -> None:
    memory.pipe_file("/bucket/demo/config.json", b"{}")
    call, kind, says = REFUSED[case]
    check_refused(call, kind, says)
    assert not Path("runs").exists() and [*held(memory)] == ["config.json"]


def test_a_missing_library_is_named(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    says = "run_dir='memory://bucket/demo' needs fsspec: pip install \"marlcore[remote]\""
    check_refused(train, ModuleNotFoundError, says)
