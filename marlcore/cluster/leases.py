"""Leases record each seat's present holder by its number, the epoch. Rows of other holders are refused.

The table, in shared memory, has a cache line of words for each seat. One process, the controller, writes the table. An
ingest loads one word to check whether it may take an epoch's rows. Fencing a holder ends its lease. The silence of a
holder is measured only by the clock of the table's machine.

Why this is sound (csrc/test/spin/lease.pml): the word that the ingest checks is the holder's epoch itself; fencing is a
single store; an epoch never returns; and an ingest finishes a message before it takes a message of a later epoch.
"""

from time import monotonic_ns

from ..checks import check_whole
from ..declared import Number
from ..errors import MarlcoreError
from ..memory import LINE, File, Segment, Shared, Words

# Words of a seat's line: the last epoch; the epoch that holds the seat, or 0; the time when the holder was last heard;
# in a copy of the controller's table, the last ended epoch
_EPOCH, _HOLDER, _HEARD, _ENDED = range(4)
_WRITER_LOCK = 1  # a byte of the file
_MOST_SEATS = 2**20


class Leases(Shared):
    """A table of the epoch that holds each seat of a run, and of the time for which the holder has been silent.

    Only the process that creates the table may write to it, from one thread at a time. Ingests on the same machine
    attach by `watch(handle)`, and call `check`. The holders of a seat are numbered from 1; these numbers are their
    epochs. An epoch that has ended never holds the seat again.

    Attributes:
        seats: the number of seats; a seat is an integer from 0 on.
        lease_seconds: seconds of silence after which a lease ends.
    """

    kind = "leases"

    def _understand(self, segment: Segment) -> None:
        self.seats: int = segment.description["seats"]
        self.lease_seconds: float = segment.description["lease_seconds"]
        _check(self.seats, self.lease_seconds)
        if self.seats * LINE > len(segment.body):
            raise ValueError(f"body: expected {self.seats * LINE} bytes of seats, got {len(segment.body)}")
        self._lines = [Words(segment.body[seat * LINE :]) for seat in range(self.seats)]
        self._claim: File | None = None
        self._looked = monotonic_ns()

    @classmethod
    def create(cls, seats: int, lease_seconds: float = 2.0) -> "Leases":
        """Creates a table of free seats; this process is its only writer.

        Raises: ValueError: an argument is out of range. SharedMemoryFull: no room for the table.
        """
        _check(seats, lease_seconds)
        description = {"kind": cls.kind, "seats": int(seats), "lease_seconds": float(lease_seconds)}
        table = cls(Segment.create("leases", description, seats * LINE))
        table._claim = table._segment.lock(_WRITER_LOCK)
        return table

    def grant(self, seat: int) -> int:
        """Leases a free seat to a new holder, whose silence counts from now.

        Returns: the new holder's epoch.

        Raises: MarlcoreError: the seat is held. ValueError: there is no such seat.
        """
        words = self._written(seat)
        if holder := words.load(_HOLDER):
            raise MarlcoreError(f"seat: expected a free seat, got seat {seat}, held in epoch {holder}")
        epoch = words.load(_EPOCH) + 1
        words.store(_EPOCH, epoch)
        words.store(_HEARD, monotonic_ns())
        words.store(_HOLDER, epoch)
        return epoch

    def renew(self, seat: int, epoch: int) -> bool:
        """Notes that the holder was heard. Returns False if its epoch has ended; the holder must then stop."""
        words = self._written(seat)
        holds = epoch > 0 and words.load(_HOLDER) == epoch
        if holds:
            words.store(_HEARD, monotonic_ns())
        return holds

    def fence(self, seat: int) -> bool:
        """Ends the lease of a lost holder; ingests then refuse its rows. Returns False if the seat was free."""
        words = self._written(seat)
        was_held = words.load(_HOLDER) != 0
        words.store(_HOLDER, 0)
        return was_held

    def expire(self) -> list[int]:
        """Fences each seat whose holder was silent for `lease_seconds`; call it several times per `lease_seconds`.

        Between two calls, at most half of `lease_seconds` counts as silence, so that a controller that was itself
        stopped can first read the waiting messages.

        Returns: the fenced seats.
        """
        lines = [self._written(seat) for seat in range(self.seats)]
        now, lease = monotonic_ns(), int(self.lease_seconds * 1e9)
        unwatched = max(0, now - self._looked - lease // 2)
        self._looked = now
        silent = []
        for seat, words in enumerate(lines):
            if words.load(_HOLDER):
                if unwatched:
                    words.store(_HEARD, min(now, words.load(_HEARD) + unwatched))
                if now - words.load(_HEARD) >= lease:
                    self.fence(seat)
                    silent.append(seat)
        return silent

    def check(self, seat: int, epoch: int) -> bool:
        """Returns whether this epoch holds the seat, and its rows may be taken. Any local process may call this.

        After the check, an ingest must take or refuse the rows before it looks at rows of another epoch of the seat.
        """
        return epoch > 0 and self._line(seat).load(_HOLDER) == epoch

    def follow(self, seat: int, ended: int) -> None:
        """Records, in a copy of the controller's table, that a seat's epochs up to `ended` have ended."""
        self._written(seat).store(_ENDED, ended)

    def allows(self, seat: int, epoch: int) -> bool:
        """Returns whether an epoch has not ended, in a copy of the controller's table; see `follow`."""
        return epoch > self._line(seat).load(_ENDED)

    def epoch(self, seat: int) -> int:
        """Returns the seat's newest epoch, or 0 if the seat had no holder yet."""
        return self._line(seat).load(_EPOCH)

    def state(self, seat: int) -> str:
        """Returns "free" before the seat's first lease, "held" during a lease, "fenced" after a lease."""
        words = self._line(seat)
        if words.load(_HOLDER):
            return "held"
        return "fenced" if words.load(_EPOCH) else "free"

    def age(self, seat: int) -> float:
        """Returns the seconds since the seat's newest holder was last heard."""
        return (monotonic_ns() - self._line(seat).load(_HEARD)) / 1e9

    def close(self) -> None:
        """Releases the table; the writer's `close` also removes its name. Other processes keep their mappings."""
        if self._claim is not None:
            self._claim.close()
        super().close()

    def _line(self, seat: int) -> Words:
        self.check_open()
        check_whole("seat", seat, 0, self.seats - 1)
        return self._lines[seat]

    def _written(self, seat: int) -> Words:
        if self._claim is None:
            raise MarlcoreError(f"{self._segment.path}: expected the creator of the leases, got another process")
        return self._line(seat)


def _check(seats: object, lease_seconds: object) -> None:
    check_whole("seats", seats, 1, _MOST_SEATS)
    Number(above=0)("lease_seconds", lease_seconds)
