"""How fast one process adds while another samples flat out, against how fast it adds alone."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

from marlcore import ReplayBuffer

from .peers.ring import LockedRing
from .transitions import BATCH, VECTOR, adding, spec_of, writing

CAPACITY = 100_000
WARM_UP_S = 0.3

Sample = Callable[[], Any]


@dataclass(frozen=True)
class Rates:
    """Adds a second, and their ratios: medians of the rounds."""

    alone: float  # the other process sleeps
    beside_spinning: float  # it computes, and touches no shared memory: what the machine itself takes away
    beside_sampling: float
    kept: float  # beside_sampling / alone
    kept_of_busy: float  # beside_sampling / beside_spinning: what sharing the memory takes away


@contextmanager
def _marlcore() -> Iterator[tuple[ReplayBuffer, Sample]]:
    with ReplayBuffer.create(spec_of(VECTOR), CAPACITY) as replay:
        yield replay, replay.sampler(BATCH, seed=0).sample


@contextmanager
def _locks() -> Iterator[tuple[LockedRing, Sample]]:
    ring = LockedRing(CAPACITY, VECTOR.shape, VECTOR.dtype.name)
    yield ring, partial(ring.sample, BATCH)


LIBRARIES = {"marlcore": _marlcore, "locks": _locks}


def _serve(shared: Any, pipe: Connection) -> None:
    """The writing process: adds for the seconds it is asked to and answers with its rate."""
    with adding(shared, VECTOR) as add:
        while seconds := pipe.recv():
            pipe.send(_rate(add, seconds))


def _rate(add: Callable[[], Any], seconds: float) -> float:
    count, began = 0, perf_counter()
    while (spent := perf_counter() - began) < seconds:
        for _ in range(256):
            add()
        count += 256
    return count / spent


def measure_rates(library: str, rounds: int, seconds: float, warm_up_s: float = WARM_UP_S) -> Rates:
    """The rates of a library's writer; each round measures all three for `seconds` each."""
    with LIBRARIES[library]() as (shared, sample), writing(_serve, shared) as pipe:

        def rate_beside(work: Callable[[], Any], seconds: float) -> float:
            pipe.send(seconds)
            while not pipe.poll():
                work()
            return float(pipe.recv())

        sleep, spin = partial(pipe.poll, None), partial(sum, range(1000))
        rate_beside(sleep, warm_up_s)
        sample()
        taken = [[rate_beside(work, seconds) for work in (sleep, spin, sample)] for _ in range(rounds)]
    alone, spinning, sampling = zip(*taken, strict=True)
    return Rates(median(alone), median(spinning), median(sampling), _ratio(sampling, alone), _ratio(sampling, spinning))


def _ratio(rates: Iterable[float], to: Iterable[float]) -> float:
    return median(one / other for one, other in zip(rates, to, strict=True))
