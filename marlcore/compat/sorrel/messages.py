"""Messages from an experiment's processes, and their conversion to sorrel's records: one per epoch, in order."""

import errno
import math
import os
import pickle
import struct
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from ...errors import suppress_failed_calls

_LENGTH = struct.Struct("=q")
_PIECE = 1 << 20  # bytes that one read takes


class Mailbox:
    """The parent's end of a pipe from one worker's processes; the kernel removes the pipe with the parent."""

    def __init__(self) -> None:
        self._fds = list(os.pipe())
        os.set_blocking(self._fds[0], False)
        self.path = f"/proc/{os.getpid()}/fd/{self._fds[1]}"  # by which the worker opens the pipe, which has no name
        self._came = bytearray()

    def messages(self) -> Iterator[Any]:
        """Yields the complete messages that have arrived, in order; never waits."""
        with suppress_failed_calls(errno.EAGAIN):
            while True:
                self._came += os.read(self._fds[0], _PIECE)
        while len(self._came) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._came)[0]
            if len(self._came) < end:
                break  # the rest comes later, or never if the sender was killed
            message = pickle.loads(self._came[_LENGTH.size : end])
            del self._came[:end]
            yield message

    def drop_rest(self) -> None:
        """Drops the incomplete message of a killed process; call it before the next process starts."""
        self._came.clear()

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def framed(epoch: int, content: Any) -> bytes:
    """Returns a message's bytes, to be written to a mailbox's path."""
    data: bytes = cloudpickle.dumps((epoch, content))
    return _LENGTH.pack(len(data)) + data


@dataclass(frozen=True)
class Experiment:
    """The counts, times, scores and losses of an experiment."""

    epochs: int  # played to their end
    steps: int  # of all agents together
    updates: int  # calls of `train_step`, of all agents together
    restarts: int  # of processes that died
    seconds: float  # from the call to its end
    start_s: float  # the part of `seconds` before the first turn, in which processes start
    scores: list[float]  # the world's total reward in each epoch
    losses: list[float]  # in each epoch, the sum over all agents


class Book:
    """Keeps an experiment's records, and passes them to sorrel's Logger, if there is one."""

    def __init__(self, logger: Any, actor: str = "", learners: Sequence[str] = (), env: Any = None) -> None:
        self._logger, self._env = logger, env
        self._actor, self._learners = actor, learners
        self._epochs: defaultdict[int, dict[str, Any]] = defaultdict(dict)  # contents of messages by sender
        self.scores: list[Any] = []
        self.losses: list[float] = []  # in each epoch, the sum over all agents
        self.turns = 0  # of the environment, if this process has it

    def take(self, sender: str, epoch: int, content: Any) -> None:
        """Takes a learner's loss, or an actor's (score, epsilon, further values, statistics of each turn).

        A restarted process repeats an epoch: its message replaces an earlier one that is not recorded yet.
        """
        self._epochs[epoch][sender] = content

    def record(self, all_of_it: bool = False) -> None:
        """Records complete epochs in order; with `all_of_it`, also epochs that lack a loss, which becomes NaN."""
        while self._actor in self._epochs[epoch := len(self.scores)]:
            if not all_of_it and len(self._epochs[epoch]) <= len(self._learners):
                return
            contents = self._epochs.pop(epoch)
            score, epsilon, values, turns = contents[self._actor]
            for stats in turns:
                self.record_step(stats)
            loss = sum(contents.get(learner, math.nan) for learner in self._learners)
            self.record_epoch(epoch, loss, score, epsilon, **values)

    def record_step(self, stats: Any) -> None:
        if self._logger is not None:
            self._logger.record_step(stats)

    def record_epoch(self, epoch: int, loss: Any, score: Any, *rest: Any, **values: Any) -> None:
        self.turns += 0 if self._env is None else self._env.turn
        self.scores.append(score)
        self.losses.append(as_number(loss))
        if self._logger is not None:
            self._logger.record_epoch(epoch, loss, score, *rest, **values)

    def experiment(self, began: float, first_turn: float, **counts: int) -> Experiment:
        """Returns the result of an experiment that ends now; `began` and `first_turn` are from time.monotonic()."""
        seconds, start_s = time.monotonic() - began, first_turn - began
        return Experiment(**counts, seconds=seconds, start_s=start_s, scores=self.scores, losses=self.losses)


def as_number(loss: Any) -> float:
    """Returns the mean of a model's loss, which may be a number, an array or a tensor."""
    detached = loss.detach().cpu() if hasattr(loss, "detach") else loss
    return float(np.mean(np.asarray(detached, np.float64)))
