"""Leases: an ended epoch never returns, silence ends a lease, and only the clock of the table's machine counts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from refused import check_refused, each_bad, refusals, refused, stale_in_a_fork

from marlcore import MarlcoreError
from marlcore.cluster import Leases


class Clock:
    """The clock of the table's machine; a test advances it."""

    ns = 10**12

    def __call__(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("marlcore.cluster.leases.monotonic_ns", clock)
    return clock


@pytest.fixture
def leases(clock: Clock) -> Iterator[Leases]:
    with Leases.create(3, lease_seconds=2.0) as table:
        yield table


def watch(leases: Leases, clock: Clock, seconds: float, *renewed: tuple[int, int]) -> list[int]:
    """Looks twice a second, as a controller does, and renews (seat, epoch) pairs before; returns the fenced seats."""
    fenced = []
    for _ in range(round(seconds * 2)):
        clock.advance(0.5)
        for seat, epoch in renewed:
            leases.renew(seat, epoch)
        fenced += leases.expire()
    return fenced


def test_a_held_seat_is_not_granted_again(leases: Leases) -> None:
    leases.grant(2)
    with refused(MarlcoreError, "seat: expected a free seat, got seat 2, held in epoch 1"):
        leases.grant(2)
    assert leases.check(2, 1)


def test_a_controller_that_was_stopped_listens_before_it_fences(leases: Leases, clock: Clock) -> None:
    """The controller wakes up after a minute; renewals that waited count, and a silent holder is fenced soon."""
    living, silent = leases.grant(0), leases.grant(1)
    assert watch(leases, clock, 1.0, (0, living), (1, silent)) == []
    clock.advance(60.0)
    assert leases.expire() == []
    assert watch(leases, clock, 1.0, (0, living)) == [1]
    assert leases.check(0, living)


def test_a_rarely_looking_controller_still_fences(leases: Leases, clock: Clock) -> None:
    leases.grant(0)
    looks = 0
    while leases.check(0, 1):
        clock.advance(30.0)
        leases.expire()
        looks += 1
    assert looks == 2


def test_random_histories_agree_with_a_plain_table(leases: Leases, clock: Clock) -> None:
    """The oracle has a dict for each seat; an epoch that has ended never holds its seat again."""
    rng = np.random.default_rng(0)
    plain = [{"epoch": 0, "holder": 0, "heard": 0.0, "state": "free"} for _ in range(3)]
    now = 0.0

    def fence(row: dict[str, Any]) -> None:
        row.update(holder=0, state="fenced")

    for _ in range(1500):
        seat, epoch = int(rng.integers(3)), int(rng.integers(1, 80))
        row = plain[seat]
        epoch = row["epoch"] if rng.random() < 0.5 else epoch
        held = epoch > 0 and row["holder"] == epoch
        action = rng.integers(5)
        if action == 0 and not row["holder"]:
            row.update(epoch=row["epoch"] + 1, holder=row["epoch"] + 1, heard=now, state="held")
            assert leases.grant(seat) == row["epoch"]
        elif action == 1:
            assert leases.renew(seat, epoch) == held
            row.update(heard=now if held else row["heard"])
        elif action == 2 and rng.random() < 0.1:
            assert leases.fence(seat) == bool(row["holder"])
            if row["holder"]:
                fence(row)
        else:
            clock.advance(0.25)
            now += 0.25
            silent = [s for s, other in enumerate(plain) if other["holder"] and now - other["heard"] >= 2.0]
            for s in silent:
                fence(plain[s])
            assert leases.expire() == silent
        for s, other in enumerate(plain):
            seen = {"epoch": leases.epoch(s), "state": leases.state(s)}
            assert seen == {name: other[name] for name in seen}
            holders = [other["holder"]] if other["holder"] else []
            assert [e for e in range(other["epoch"] + 2) if leases.check(s, e)] == holders
            assert not other["epoch"] or leases.age(s) == now - other["heard"]
    assert min(row["epoch"] for row in plain) > 10


def test_another_process_sees_a_fenced_epoch(program: Callable[..., Any]) -> None:
    """The other process maps the table read-only, as an ingest does."""
    with Leases.create(2) as leases:
        epoch = leases.grant(1)
        ingest = program(
            """
            import sys
            from marlcore.cluster import Leases
            with Leases.watch(sys.argv[1]) as leases:
                for _ in range(3):
                    print(leases.check(1, 1), leases.check(1, 2), flush=True)
                    sys.stdin.readline()
            """,
            args=[leases.handle.path],
        )
        assert ingest.line() == "True False" and epoch == 1
        leases.fence(1)
        ingest.tell()
        assert ingest.line() == "False False"
        leases.grant(1)
        ingest.tell()
        assert ingest.line() == "False True"
        ingest.tell()
        ingest.finish()


def test_only_the_creator_writes(leases: Leases) -> None:
    says = "expected the creator of the leases, got another process"
    with Leases.attach(leases.handle) as attached, Leases.watch(leases.handle) as watching:
        for other in (attached, watching):
            for call in (other.expire, lambda table=other: table.grant(0), lambda table=other: table.fence(0)):
                check_refused(call, MarlcoreError, says)
    assert leases.grant(0) == 1 and stale_in_a_fork(lambda: leases.check(0, 1), lambda: leases.renew(0, 1))


BAD = [
    *each_bad(Leases.create, "an integer from 1 to 1048576", seats=[0, -1, 1.0, True, None, 2**21]),
    *each_bad(partial(Leases.create, 1), "a finite number above 0",
        lease_seconds=[0, -1.0, float("inf"), float("nan"), True, "2", None]),
]  # fmt: skip
test_a_bad_argument_is_refused = refusals(BAD)


def test_a_seat_that_does_not_exist_is_refused(leases: Leases) -> None:
    for seat in (-1, 3, 0.0, True, None):
        for call in (leases.grant, leases.epoch, leases.state, leases.age, lambda s: leases.check(s, 1)):
            check_refused(partial(call, seat), ValueError, f"seat: expected an integer from 0 to 2, got {seat!r}")


def test_a_following_table_refuses_only_what_has_ended(leases: Leases) -> None:
    assert leases.allows(1, 1)
    leases.follow(1, 2)
    assert [epoch for epoch in range(5) if leases.allows(1, epoch)] == [3, 4] and leases.allows(0, 1)
