"""Leases: which incarnation of a node holds each seat, and which may no longer be heard."""

from ..memory import Shared


class Leases(Shared):
    """The seats of a run: who holds each, in which epoch, and since when nothing was heard of the holder.

    The process that creates the table is its only writer; ingests of the same machine `watch` its handle and `check`.
    An epoch is the number of a holder of its seat, from 1 on; it grows for ever, and one that has ended never returns.

    Attributes:
        seats: their number.
        lease_seconds: silence after which a lease ends.
    """

    kind = "leases"

    @classmethod
    def create(cls, seats: int, lease_seconds: float = 2.0) -> "Leases":
        """A table of free seats, whose writer is this process."""
        raise NotImplementedError

    def grant(self, seat: int) -> int:
        """Gives the seat, which a living lease must not hold, to a new holder. Returns: its epoch."""
        raise NotImplementedError

    def renew(self, seat: int, epoch: int) -> bool:
        """Notes that the holder was heard now; False: this epoch has ended, and its agent must stop."""
        raise NotImplementedError

    def release(self, seat: int, epoch: int) -> bool:
        """Ends a lease in order: the seat is free, and nothing more of this epoch is taken; False: it had ended."""
        raise NotImplementedError

    def fence(self, seat: int) -> bool:
        """Ends a lease whose holder is lost; False: nobody held the seat."""
        raise NotImplementedError

    def expire(self) -> list[int]:
        """Fences each seat whose holder was silent for `lease_seconds`; returns these seats."""
        raise NotImplementedError

    def check(self, seat: int, epoch: int) -> bool:
        """Whether this epoch holds the seat, so that its rows may be taken; for any process that maps the table."""
        raise NotImplementedError

    def epoch(self, seat: int) -> int:
        """The seat's last epoch, 0 before the first."""
        raise NotImplementedError

    def state(self, seat: int) -> str:
        """ "free", "held" or "fenced"."""
        raise NotImplementedError

    def age(self, seat: int) -> float:
        """Seconds since the seat's holder was last heard."""
        raise NotImplementedError

    def fenced(self, seat: int) -> int:
        """How often the seat was fenced."""
        raise NotImplementedError
