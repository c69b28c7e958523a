"""Who may write a policy's checkpoint, where learners on several machines can reach the run's directory."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import Fenced
from ..regular_files import read_regular
from .files import remove_unfinished, write_atomically


@dataclass(frozen=True)
class Hold:
    """The right of a policy's learner to write its checkpoint, until a later one has it.

    A checkpoint is written beside its file, then the hold is checked, then it replaces the file. The next holder first
    takes the hold, then removes what is being written, and then reads: so no earlier learner replaces the file any
    more. A save removes nothing of other writes, which may be the next holder's.
    """

    checkpoint: Path
    run: str  # this part of the run, by a random name
    epoch: int

    def take(self) -> None:
        """Ends the hold of every other learner."""
        write_atomically(self._path, self._text)

    def begin(self) -> None:
        """For the holder, before it reads the checkpoint: ends what an earlier one is writing."""
        self.check()
        remove_unfinished(self.checkpoint)

    def check(self) -> None:
        """Raises Fenced: another learner has the hold, or none has. OSError: the file cannot be read."""
        if self._held() != self._text:
            raise Fenced(f"{str(self._path)!r}: another learner has taken this policy over")

    def is_seen(self) -> bool:
        """Whether this machine sees that a learner of this part of the run has a hold."""
        return self._held().startswith(f"{self.run} ".encode())

    def end(self) -> None:
        """Ends every hold of this policy's checkpoint, for a learner without one, before it reads."""
        self._path.unlink(missing_ok=True)
        remove_unfinished(self.checkpoint)

    def _held(self) -> bytes:
        with suppress(FileNotFoundError):
            return read_regular(self._path, 4096)
        return b""

    @property
    def _path(self) -> Path:
        return self.checkpoint.with_suffix(".holder")

    @property
    def _text(self) -> bytes:
        return f"{self.run} {self.epoch}".encode()
