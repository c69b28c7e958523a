"""The log file of a worker, which also gets its stacks if it hangs."""

import logging
import os
import sys
from io import TextIOWrapper
from pathlib import Path

from .signals import write_stacks_when_asked


def opener(path: str, flags: int) -> int:
    """An `opener` for `open`: all can read the file, only this user can write it; refuses links and pipes."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)


def setup_logging(path: str | Path) -> None:
    """Sends this process's log records of level INFO and above, and its warnings, to a file."""
    logging.basicConfig(
        handlers=[_LogFile(path)],
        level=logging.INFO,
        format="%(asctime)s %(processName)s %(levelname)s %(message)s",
        force=True,  # the environment's imports may have installed other handlers
    )
    logging.captureWarnings(True)


def has_log_file() -> bool:
    """Whether this process logs to a file that `setup_logging` opened."""
    return any(isinstance(handler, _LogFile) for handler in logging.getLogger().handlers)


def setup_worker(path: str | Path | None) -> None:
    """Does `setup_logging`, and sends the stacks of a worker that hangs to the same file.

    With the path None, sends only the stacks, to standard error.
    """
    if path is None:
        write_stacks_when_asked()
        return
    setup_logging(path)
    write_stacks_when_asked(open(path, "a", opener=opener))  # noqa: SIM115 - not the handler's, which may be closed


class _LogFile(logging.FileHandler):
    """A log file that ignores a full disk: the parent shows failures anyway."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=opener)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
