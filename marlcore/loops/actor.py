"""The actor's loop: observe, record outcomes, act. It waits for a learner only if updates per step are limited.

The loop handles all copies of the environment at once, as arrays.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..interfaces import Turn, VectorEnvironment
from .collector import Collector, Ended, LeagueCollector

Collectors = Mapping[str, Collector | LeagueCollector]  # by agent


class ActorHost(Protocol):
    """The worker that runs an actor's loop, as the loop sees it."""

    rounds: int  # so far
    episodes: int  # ended episodes as of the last round
    ended: NDArray[np.int64]  # [copies]: ended episodes of each copy

    def acting(self) -> bool:
        """Whether this actor has steps left to take, and the run has not been stopped."""

    def begin(self, turn: Turn) -> None:
        """Assigns opponents and parts of the replay to the episodes that begin."""

    def report_ended(self, ended: Ended) -> None: ...

    def report(self, agent: str, name: str, value: float) -> None: ...

    def count_steps(self, steps: int) -> None:
        """Counts the steps of a round, and sends a heartbeat."""


def act_until_done(env: VectorEnvironment, collectors: Collectors, host: ActorHost) -> None:
    """Steps the copies and writes transitions. Raises EnvironmentFailed if a copy raises or returns a bad value."""
    while host.acting():
        turns = observe(env, collectors, host)
        act(env, collectors, turns, host)


def observe(env: VectorEnvironment, collectors: Collectors, host: ActorHost) -> list[Turn]:
    """Records the outcomes of earlier actions, and returns the due turns. Writing a row may wait for a learner."""
    outcomes, turns = env.observe()
    for outcome in outcomes:
        collectors[outcome.agent].record(outcome)
    if env.episodes != host.episodes:
        _report_over(env, collectors, host)
    return turns


def _report_over(env: VectorEnvironment, collectors: Collectors, host: ActorHost) -> None:
    over = (env.ended != host.ended).nonzero()[0]
    host.episodes, host.ended[over] = env.episodes, env.ended[over]
    finished = [ended for collector in collectors.values() for ended in collector.end(over)]
    for ended in finished:  # only now, since a game's result depends on all agents' returns
        host.report_ended(ended)


def cut_episodes(env: VectorEnvironment, collectors: Collectors, host: ActorHost) -> None:
    """Records the outcomes of the last actions, and truncates the episodes that have not ended.

    This completes the last transitions, so that a queue's reader gets the last batch.
    """
    outcomes, turns = env.observe()
    following = {turn.agent: turn for turn in turns}
    for outcome in outcomes:
        turn = following.get(outcome.agent)
        if turn and outcome.acted:
            cut = np.isin(outcome.copies, turn.copies) & ~(outcome.terminated | outcome.truncated)
            last, outcome = outcome.part(cut), outcome.part(~cut)
            final_obs = turn.part(np.isin(turn.copies, last.copies)).obs
            if len(last.copies):  # recorded as a row, but not reported as an episode
                truncated = np.ones(len(last.copies), bool)
                collectors[last.agent].record(last._replace(truncated=truncated, final_obs=final_obs))
        if len(outcome.copies):
            collectors[outcome.agent].record(outcome)
    _report_over(env, collectors, host)


def act(env: VectorEnvironment, collectors: Collectors, turns: list[Turn], host: ActorHost) -> None:
    """Takes the due actions, after pulling the newest weights if a pull is due.

    Only policies whose turn is due check for newer weights: a check for every agent would slow each turn.
    """
    for turn in turns:
        for weights in collectors[turn.agent].followed:
            weights.pull_if_due(host.rounds)
    steps = 0
    for turn in turns:
        collector = collectors[turn.agent]
        if len(turn.begins.nonzero()[0]):  # takes half the time of `np.count_nonzero`
            host.begin(turn)
            lost = collector.begin(turn.copies[turn.begins])
            if lost:
                host.report(turn.agent, "transitions_lost", lost)
        env.act(turn, collector.act(turn))
        steps += len(turn.copies)
    host.count_steps(steps)
