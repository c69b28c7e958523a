"""Steps a second of whole training runs, beside other libraries: `python -m bench throughput`.

The sides of a row take turns, round by round, on the same cores, with one torch thread a process. A figure is the
median over the rounds; a ratio is the median of the rounds' ratios.
"""

import argparse
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import truediv
from statistics import median

import gymnasium
import torch

from marlcore import EvaluationConfig, LearnerConfig, MetricsConfig
from marlcore.envs import TreasureHunt

from ..figures import markdown
from ..machine import add_output, publish, say
from ..peers import designs, plain_dqn, sb3
from ..peers.install import SAMPLE_FACTORY, appo_rate
from ..peers.plain_dqn import Setting, Trained
from ..processes import in_turns, run_fresh
from .training import act_alone, act_apart, train, train_on_policy

CARTPOLE, HUNT = "gymnasium:CartPole-v1", "treasure_hunt"
CARTPOLES = partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")
EPISODES = 1000  # steps of one copy in three episodes of the hunt, whose ends tell the rate
LEAST = 4000  # steps of a run
DQN = Setting()
SEEDS = Setting(updates_per_step=0.1)
PPO = Setting(updates_per_step=1 / 512, batch=512, learning_rate=3e-4, warmup=0)  # an update for each batch
# Stable-Baselines3's own passes
PASSES = Setting(updates_per_step=320 / 2048, batch=2048, epochs=10, minibatch=64, learning_rate=3e-4, warmup=0)


@dataclass(frozen=True)
class Side:
    """A run of so many steps at full scale, and at least; `run` returns its steps a second."""

    run: Callable[[int], float]
    steps: int
    least: int = LEAST

    def rate(self, scale: float) -> float:
        return self.run(max(self.least, round(self.steps * scale)))


def judged(rates: Mapping[str, list[float]], side: str, least: float, peer: str = "") -> str:
    """The rate of `side` must be at least `least` times that of `peer`, or at least `least` steps/s without one."""
    rate = median(map(truediv, rates[side], rates[peer])) if peer else median(rates[side])
    line = f"{side} / {peer}: {rate:.2f}, at least {least:g}"
    line = line if peer else f"{side}: {rate:,.0f} steps/s, at least {least:,.0f}"
    return f"{line}: {'reached' if rate >= least else 'missed'}"


Comparison = tuple[str, Mapping[str, Side], tuple[tuple[str, float] | tuple[str, float, str], ...]]
"""One kind of work by its name, how each side does it, and the arguments of `judged`."""


def ours(steps: int, setting: Setting, env: object = CARTPOLE, agents: int = 1, mode: str = "async") -> float:
    return train(env, setting, steps, mode).checked_rate(setting, agents)


def ours_on_policy(
    steps: int, env: object = CARTPOLE, mode: str = "async", actors: int = 1, setting: Setting = PPO
) -> float:
    return train_on_policy(env, setting, steps, mode, actors).checked_rate(setting)


def peer(train: Callable[[Setting, int], Trained], setting: Setting, steps: int, agents: int = 1) -> Side:
    """In a fresh interpreter, so that no library meets another's threads or caches."""
    return Side(lambda steps: run_fresh(train, setting, steps).checked_rate(setting, agents), steps)


def acting(steps: int, copies: int, processes: int = 1, **settings: object) -> Side:
    """The hunt's three agents act alone."""
    run = partial(act_alone, env=HUNT, envs=copies, processes=processes, agents=3, **settings)
    return Side(run, steps, processes * copies * EPISODES)


def by_agents(agents: int, **settings: object) -> Side:
    run = partial(act_alone, env=partial(TreasureHunt, agents=agents), envs=4, agents=agents, **settings)
    return Side(run, 60_000, 4 * EPISODES)


@cache
def balanced(steps: int) -> Setting:
    """The setting in which a learner's updates take as long as its actor's steps, by the times of two serial runs."""
    few, many = (replace(DQN, updates_per_step=ratio) for ratio in (0.02, 0.25))
    fast, slow = (1 / ours(steps, setting, mode="serial") for setting in (few, many))
    update = (slow - fast) / (many.updates_per_step - few.updates_per_step)
    setting = replace(DQN, updates_per_step=(fast - few.updates_per_step * update) / update)
    say(f"actor and learner take equal time at {setting.updates_per_step:.3f} updates a step")
    return setting


def two_runs(steps: int, copies: int) -> Side:
    """What a second program adds, which shares nothing but the machine."""
    run = partial(act_apart, env=HUNT, envs=copies, runs=2, agents=3)
    return Side(run, steps, 2 * copies * EPISODES)


LEARNING = LearnerConfig(warmup=1000, device="cpu")
HANGING = MetricsConfig(sinks=("csv", "tensorboard", "bench.runs.training:HangingSink"))
ROWS: dict[str, Comparison] = {
    "dqn": (
        "CartPole, DQN, 0.25 updates a step",
        {
            "marlcore": Side(partial(ours, setting=DQN), 60_000),
            "marlcore, serial": Side(partial(ours, setting=DQN, mode="serial"), 30_000),
            "plain loop": peer(plain_dqn.train, DQN, 15_000),
            "Stable-Baselines3": peer(sb3.train_dqn, DQN, 10_000),
        },
        (("marlcore", 8, "plain loop"), ("marlcore", 12, "Stable-Baselines3")),
    ),
    "acting": (
        "treasure_hunt, 3 agents that act alone",
        {
            "4 copies": acting(120_000, 4),
            "16 copies": acting(300_000, 16),
            "64 copies": acting(600_000, 64),
            "2 x 16 copies": acting(600_000, 16, 2),
            "2 x 64 copies": acting(1_200_000, 64, 2),
            "2 runs of 16 copies": two_runs(600_000, 16),
            "2 runs of 64 copies": two_runs(1_200_000, 64),
        },
        (
            ("64 copies", 150_000),
            ("2 x 16 copies", 1.0, "2 runs of 16 copies"),
            ("2 x 64 copies", 0.9, "2 runs of 64 copies"),
            ("2 x 16 copies", 1.9, "16 copies"),
            ("2 x 64 copies", 1.9, "64 copies"),
        ),
    ),
    "beside": (
        "treasure_hunt, 16 copies, beside others",
        {
            "alone": acting(300_000, 16),
            "a hanging sink": acting(300_000, 16, metrics=HANGING),
            "an evaluator": acting(300_000, 16, evaluation=EvaluationConfig(interval=10_000)),
        },
        (("a hanging sink", 0.99, "alone"), ("an evaluator", 0.95, "alone")),
    ),
    "learners": (
        "treasure_hunt, 4 copies, by agents",
        {
            "1 alone": by_agents(1),
            "1 while learners train": by_agents(1, learner=LEARNING),
            "3 alone": by_agents(3),
            "3 while learners train": by_agents(3, learner=LEARNING),
        },
        (("1 while learners train", 0.9, "1 alone"),),
    ),
    "vectorized": (
        "vectorized CartPole, acting alone",
        {f"{n} copies": Side(partial(act_alone, env=partial(CARTPOLES, n), envs=n), 1_000_000) for n in (64, 256)},
        (("64 copies", 200_000),),
    ),
    "modes": (
        "CartPole, as many updates that actor and learner take equal time",
        {
            "async": Side(lambda steps: ours(steps, balanced(steps)), 60_000),
            "serial": Side(lambda steps: ours(steps, balanced(steps), mode="serial"), 60_000),
        },
        (("async", 1.7, "serial"),),
    ),
    "designs": (
        "treasure_hunt, 3 learners, 0.1 updates a step",
        {
            "marlcore": Side(partial(ours, setting=SEEDS, env=HUNT, agents=3), 120_000, 16 * EPISODES),
            "pickles in mp.Queue": peer(designs.train_by_pickles, SEEDS, 30_000, agents=3),
            "shared arrays with mp.Lock": peer(designs.train_by_locks, SEEDS, 30_000, agents=3),
        },
        (("marlcore", 5, "pickles in mp.Queue"), ("marlcore", 5, "shared arrays with mp.Lock")),
    ),
    "on_policy": (
        "CartPole, PPO, one step on each 512 transitions",
        {
            "marlcore": Side(ours_on_policy, 400_000),
            "marlcore, 64 copies": Side(partial(ours_on_policy, env=partial(CARTPOLES, 64)), 800_000),
            "marlcore, 2 actors": Side(partial(ours_on_policy, actors=2), 400_000),
            "marlcore, serial": Side(partial(ours_on_policy, mode="serial"), 200_000),
            "Stable-Baselines3": peer(sb3.train_ppo, PPO, 100_000),
            "Sample Factory 2.1.1": Side(lambda _: appo_rate(), 0),
        },
        (("marlcore", 6, "Stable-Baselines3"), ("marlcore", 3, "Sample Factory 2.1.1")),
    ),
    "passes": (
        "CartPole, PPO, ten passes over each 2,048 transitions in minibatches of 64",
        {
            "marlcore": Side(partial(ours_on_policy, setting=PASSES), 204_800, 8192),
            "marlcore, serial": Side(partial(ours_on_policy, setting=PASSES, mode="serial"), 102_400, 8192),
            "Stable-Baselines3": peer(sb3.train_ppo, PASSES, 20_480),
        },
        (("marlcore", 10, "Stable-Baselines3"),),
    ),
}


def measure(sides: Mapping[str, Side], rounds: int, scale: float) -> dict[str, list[float]]:
    return in_turns({name: partial(side.rate, scale) for name, side in sides.items()}, rounds)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--row", action="append", choices=list(ROWS), help="of these alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of each run")
    add_output(parser, idle=True)


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    logging.getLogger("marlcore").setLevel(logging.ERROR)  # who acts alone learns nothing, as it would warn
    figures: dict[str, dict[str, list[float]]] = {}
    missing = {"Sample Factory 2.1.1"} if SAMPLE_FACTORY.missing else set[str]()
    say("".join(f"skipped: {name}; {SAMPLE_FACTORY.missing}" for name in missing))
    for name, row_sides, goals in (ROWS[name] for name in options.row or ROWS):
        before = os.getloadavg()[0]
        sides = {side: how for side, how in row_sides.items() if side not in missing}
        figures[name] = rates = measure(sides, options.rounds, options.scale)
        title = f"{name} (load {before:.1f} before, {os.getloadavg()[0]:.1f} after)"
        say("\n" + markdown([title, "steps/s"], ([side, round(median(of_side))] for side, of_side in rates.items())))
        say("\n".join(judged(rates, *goal) for goal in goals if missing.isdisjoint(goal)))
    publish(options, "", steps_per_s=figures)
