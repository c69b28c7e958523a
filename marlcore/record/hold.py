"""Decides which learner may save a policy when several machines can reach the run's directory."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import Fenced
from ..memory import remove_asides
from ..regular_files import read_regular
from .files import remove_unfinished, write_atomically


@dataclass(frozen=True)
class Hold:
    """The right of a policy's learner to write its checkpoint and saved replay, until a later learner takes it.

    A learner writes a new file beside the old one, checks its hold, and then replaces the old one. The next learner
    takes the hold, removes unfinished writes, and then reads; so the earlier learner can no longer replace the files.
    (Saving removes no unfinished writes, since they may be the next learner's.)
    """

    checkpoint: Path
    run: str  # a random name of this part of the run
    epoch: int

    def take(self) -> None:
        """Ends the hold of every other learner."""
        write_atomically(self._path, self._text)

    def begin(self) -> None:
        """Removes unfinished writes of earlier learners; the holder calls this before it reads the checkpoint."""
        self.check()
        self._remove_unfinished()

    def check(self) -> None:
        """Raises Fenced if this learner has lost the hold; OSError if the hold's file cannot be read."""
        if self._read() != self._text:
            raise Fenced(f"{str(self._path)!r}: another learner has taken over this policy")

    def is_seen(self) -> bool:
        """Whether this machine sees a hold that a learner took since the run's last start."""
        return self._read().startswith(f"{self.run} ".encode())

    def end(self) -> None:
        """Ends every hold of the checkpoint. Call this before a learner without a hold reads it."""
        self._path.unlink(missing_ok=True)
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        remove_unfinished(self.checkpoint)
        remove_asides(self.checkpoint.with_suffix(".replay"))

    def _read(self) -> bytes:
        with suppress(FileNotFoundError):
            return read_regular(self._path, 4096)
        return b""

    @property
    def _path(self) -> Path:
        return self.checkpoint.with_suffix(".holder")

    @property
    def _text(self) -> bytes:
        return f"{self.run} {self.epoch}".encode()
