"""`python -m bench.actors`: the rate of actors with their learners training, and with them waiting for data.

All runs do the same work in the actors (epsilon is 0, so that every action is the network's), and are free of
`updates_per_step`, so that nobody waits for anybody. First they differ in the learners' warmup alone: with one agent
the two processes have a core each where there are two; with three agents four processes share what there is. Then
three learners wait for their warm-up while one actor process steps, or two.
"""

from __future__ import annotations

import os
import statistics
import sys
from functools import partial

import marlcore as mc
from marlcore.envs import TreasureHunt

from .training_work import run

STEPS = 60_000
ROUNDS = 3
NEVER = 1_000_000


def rate(agents: int, trains: bool, processes: int = 1, envs: int = 4) -> float:
    """Steps a second in the second half of a run."""
    config = mc.Config(
        total_steps=STEPS * processes * envs // 4,
        updates_per_step=None,
        actor=mc.ActorConfig(processes=processes, envs=envs),
        replay=mc.ReplayConfig(capacity=NEVER),
        learner=mc.LearnerConfig(warmup=1000 if trains else NEVER, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=0.0),
    )
    _, metrics = run(partial(TreasureHunt, agents=agents), "dqn", config)
    return statistics.median(
        m.value for m in metrics if m.name == "env_steps_per_s" and 2 * m.step > config.total_steps
    )


def main() -> None:
    for agents in (1, 3):
        pairs = [(rate(agents, trains=False), rate(agents, trains=True)) for _ in range(ROUNDS)]
        alone, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
        kept = statistics.median(with_learners / without for without, with_learners in pairs)
        sys.stdout.write(
            f"{agents} agents, {agents + 1} processes on {os.cpu_count()} cores: {alone:,.0f} steps/s alone, "
            f"{beside:,.0f} while learners train, kept {kept:.2f} (median of {ROUNDS} pairs)\n"
        )
    pairs = [(rate(3, False, 1, 16), rate(3, False, 2, 16)) for _ in range(ROUNDS)]
    one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
    gained = statistics.median(both / alone for alone, both in pairs)
    sys.stdout.write(
        f"3 learners that wait: {one:,.0f} steps/s of one actor process with 16 copies, {two:,.0f} of two, "
        f"gained {gained:.2f} (median of {ROUNDS} pairs)\n"
    )


if __name__ == "__main__":
    main()
