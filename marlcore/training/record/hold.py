"""Who may write a policy's checkpoint, where learners on several machines can reach the run's directory."""

from dataclasses import dataclass
from pathlib import Path

from ...errors import Fenced
from .files import remove_unfinished, write_atomically


@dataclass(frozen=True)
class Hold:
    """The right of a policy's learner to write its checkpoint, until a later one has it.

    A checkpoint is written beside its file, then the hold is checked, then it replaces the file. Its next holder first
    has the hold, then removes what is being written, and then reads: so no earlier learner replaces the file any more.
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
        """Raises Fenced: another learner has the hold. OSError: the file cannot be read."""
        if self._path.read_bytes() != self._text:
            raise Fenced(f"{str(self._path)!r}: another learner has taken this policy over")

    def is_seen(self) -> bool:
        """Whether this machine sees that a learner of this part of the run has a hold."""
        return self._path.exists() and self._path.read_bytes().startswith(f"{self.run} ".encode())

    def end(self) -> None:
        """Ends every hold of this policy's checkpoint."""
        self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self.checkpoint.with_suffix(".holder")

    @property
    def _text(self) -> bytes:
        return f"{self.run} {self.epoch}".encode()
