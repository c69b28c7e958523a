"""A run's directory at an fsspec address: the run works in a local directory, and copies its changes to the address."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Container
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeGuard

from ..checks import brief
from ..closing import Closing
from ..lazy import missing
from .sinks.csv import PROGRESS

PUSH_S = 5.0  # seconds between copies of changed files

log = logging.getLogger(__name__)


def is_address(run_dir: Any) -> TypeGuard[str]:
    """Whether a run's directory is an fsspec address, such as s3://bucket/run, not a path."""
    return isinstance(run_dir, str) and "://" in run_dir


def fetch_run(address: str, runs: Path, only: str = "") -> Path:
    """Copies a run, or `only` one of its files, to a new directory in `runs`. Raises ValueError if there is no run."""
    files, root = _opened("resume", address)
    with ExitStack() as undo:
        try:
            names = [name for name in files.find(root) if name.startswith(f"{root}/")]
            if f"{root}/config.json" not in names:
                raise FileNotFoundError("no config.json")
            runs.mkdir(parents=True, exist_ok=True)
            local = Path(os.path.abspath(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=runs)))
            undo.callback(shutil.rmtree, local)
            for name in names if not only else [f"{root}/{only}"]:
                to = Path(os.path.normpath(local / name.removeprefix(f"{root}/")))
                if local not in to.parents:  # a name may lead out of the directory
                    raise ValueError(f"expected files of a run, got {name!r}")
                to.parent.mkdir(parents=True, exist_ok=True)
                files.get_file(name, str(to))
                to.chmod(0o600)  # a saved replay must not be readable to others
        except Exception as error:  # a file system may raise anything
            raise ValueError(f"resume: expected the address of a run, got {address!r} ({brief(error)})") from None
        undo.pop_all()
    return local


class RemoteCopy(Closing):
    """Copies changed files of a run's directory to an address, in a thread; `close` copies the last changes.

    `fetched` is what `fetch_run` returned; None if the run is new.

    Raises: ValueError: the address cannot be written to or, for a new run, already holds files. OSError, from `close`:
        the last changes were not copied.
    """

    def __init__(self, address: str, fetched: Path | None = None) -> None:
        self._address = address
        self._files, self._root = _opened("run_dir", address)
        try:
            self._files.makedirs(self._root, exist_ok=True)
            found = [] if fetched else self._files.find(self._root)
        except Exception as error:
            raise ValueError(f"run_dir: expected a writable place, got {address!r} ({brief(error)})") from None
        if found:
            raise ValueError(f"run_dir: expected a new or empty directory, got {address!r}, which holds files")
        self._path: Path | None = None
        # By file: its modification time in ns, and its size. The first push of a resumed run copies every file, and
        # removes those there that the run no longer has.
        self._sent = dict.fromkeys(self._look(fetched) if fetched else (), (0, 0))
        self._folders: set[str] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="marlcore-remote", daemon=True)

    def follow(self, path: Path) -> None:
        """Starts the thread that copies this directory's changes."""
        self._path = path
        self._thread.start()

    def push(self) -> None:
        """Copies changed files to the address, and removes deleted ones there. Raises any error of the file system."""
        try:
            self._push()
        except FileNotFoundError:  # the remote directory was removed: copy everything again
            self._sent, self._folders = {}, set()
            raise

    def _push(self) -> None:
        assert self._path is not None
        path, now = self._path, self._look(self._path)
        changed = sorted(name for name in now if now[name] != self._sent.get(name))
        # Files that refer to others are read first and written last, so that they are never newer than those.
        last = {name: (path / name).read_bytes() for name in changed if _refers(name, now)}
        for name in changed:
            if name not in last:
                try:
                    self._files.put_file(str(path / name), self._place(name))
                except FileNotFoundError:
                    if (path / name).exists():  # otherwise it was removed meanwhile
                        raise
                self._sent[name] = now[name]
        for name, data in last.items():
            self._files.pipe_file(self._place(name), data)
            self._sent[name] = now[name]
        for name in self._sent.keys() - now.keys():
            with suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}")
            del self._sent[name]

    def close(self) -> None:
        """Ends the thread, and copies the remaining changes. Raises OSError if that fails."""
        if self._path is None:
            return
        self._ends.set()
        self._thread.join()
        try:
            self.push()
        except Exception as error:
            lacks = f"run_dir: {self._address} lacks the last changes ({brief(error)})"
            raise OSError(f"{lacks}; {self._path} has them") from error

    def _work(self) -> None:
        while not self._ends.wait(PUSH_S):
            try:
                self.push()
            except Exception as error:
                log.warning("run_dir: %s is not up to date; trying again (%s)", self._address, brief(error))

    def _look(self, folder: Path) -> dict[str, tuple[int, int]]:
        """Returns, by name, each complete file's modification time in ns and size in bytes."""
        found = {}
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # it was removed meanwhile
                if path.is_file() and not path.name.startswith("."):  # a dot file is an unfinished write
                    status = path.stat()
                    found[path.relative_to(folder).as_posix()] = status.st_mtime_ns, status.st_size
        return found

    def _place(self, name: str) -> str:
        """Returns a file's address, after making its remote folder if needed."""
        folder = f"{self._root}/{name}".rpartition("/")[0]
        if folder not in self._folders:
            self._files.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        return f"{self._root}/{name}"


def _refers(name: str, names: Container[str]) -> bool:
    """Whether a file refers to another file: the progress to metrics.csv, or a checkpoint to its replay in `names`."""
    return name == PROGRESS or (name.endswith(".pt") and f"{name.removesuffix('.pt')}.replay" in names)


def _opened(label: str, address: str) -> tuple[Any, str]:
    """Returns an address's file system and path. Raises ValueError, or ModuleNotFoundError without fsspec."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise missing(f"{label}={address!r}", error) from None
    try:
        files, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{label}: expected an address that fsspec knows, got {address!r} ({error})") from None
    return files, root.rstrip("/")
