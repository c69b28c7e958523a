"""Steps a second of whole training runs, beside other libraries: `python -m bench.throughput`.

The sides of a row take turns, round by round, on the same cores, with one torch thread a process. A figure is the
median over the rounds; a ratio is the median of the rounds' ratios.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import truediv
from statistics import median

import gymnasium
import torch

from marlcore import EvaluationConfig, LearnerConfig, MetricsConfig
from marlcore.envs import TreasureHunt

from .machine import describe_machine, parse_if_idle
from .peers.install import SAMPLE_FACTORY, appo_rate
from .training_work import Setting, Trained, act_alone, act_apart, in_process, train, train_on_policy

CARTPOLE, HUNT = "gymnasium:CartPole-v1", "treasure_hunt"
CARTPOLES = partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")
EPISODES = 1000  # steps of one copy in three episodes of the hunt, whose ends tell the rate
DQN = Setting()
SEEDS = Setting(updates_per_step=0.1)
PPO = Setting(updates_per_step=1 / 512, batch=512, learning_rate=3e-4, warmup=0)  # an update for each batch

Side = Callable[[], float]


@dataclass(frozen=True)
class Goal:
    """The rate of `side` must be at least `least` times that of `peer`, or at least `least` steps/s without one."""

    side: str
    least: float
    peer: str | None = None

    def text(self, rates: Mapping[str, list[float]]) -> str:
        ours = rates[self.side]
        if self.peer is None:
            rate = median(ours)
            line = f"{self.side}: {rate:,.0f} steps/s, at least {self.least:,.0f}"
        else:
            rate = median(map(truediv, ours, rates[self.peer]))
            line = f"{self.side} / {self.peer}: {rate:.2f}, at least {self.least:g}"
        return f"{line}: {'reached' if rate >= self.least else 'missed'}"


@dataclass(frozen=True)
class Comparison:
    """One kind of work, and how each side does it; a side returns its steps a second."""

    name: str
    sides: Mapping[str, Side]
    goals: tuple[Goal, ...] = ()


def ours(env: object, setting: Setting, agents: int, steps: int, mode: str = "async") -> float:
    return _checked(train(env, setting, steps, mode), setting, agents)


def ours_on_policy(env: object, steps: int, mode: str = "async", actors: int = 1) -> float:
    return _checked(train_on_policy(env, PPO, steps, mode, actors), PPO)


def peer(name: str, setting: Setting, agents: int, steps: int) -> float:
    return _checked(in_process(name, setting, steps), setting, agents)


def _checked(trained: Trained, setting: Setting, agents: int = 1) -> float:
    trained.check(setting, agents)
    return trained.rate


def rows(scale: float = 1.0) -> dict[str, Callable[[], Comparison]]:
    """Every row by its name, with runs of `scale` times the steps; one measures first what its sides need."""

    def steps(full: int, least: int = 4000) -> int:
        return max(least, round(full * scale))

    def dqn() -> Comparison:
        sides = {
            "marlcore": partial(ours, CARTPOLE, DQN, 1, steps(60_000)),
            "marlcore, serial": partial(ours, CARTPOLE, DQN, 1, steps(30_000), "serial"),
            "plain loop": partial(peer, "plain_dqn:train", DQN, 1, steps(15_000)),
            "Stable-Baselines3": partial(peer, "sb3:train_dqn", DQN, 1, steps(10_000)),
        }
        goals = Goal("marlcore", 3, "plain loop"), Goal("marlcore", 3, "Stable-Baselines3")
        return Comparison("CartPole, DQN, 0.25 updates a step", sides, goals)

    def acting() -> Comparison:
        sides = {
            f"{copies} copies": partial(act_alone, HUNT, steps(count, copies * EPISODES), copies, agents=3)
            for copies, count in ((4, 120_000), (16, 300_000), (64, 600_000))
        }
        for copies, count in ((16, 600_000), (64, 1_200_000)):
            sides[f"2 x {copies} copies"] = partial(
                act_alone, HUNT, steps(count, 2 * copies * EPISODES), copies, 2, agents=3
            )
        sides["2 runs of 16 copies"] = partial(act_apart, HUNT, steps(600_000, 2 * 16 * EPISODES), 16, 2, agents=3)
        goals = [Goal("64 copies", 150_000), Goal("2 x 16 copies", 1.0, "2 runs of 16 copies")]
        goals += [Goal(f"2 x {copies} copies", 1.9, f"{copies} copies") for copies in (16, 64)]
        return Comparison("treasure_hunt, 3 agents that act alone", sides, tuple(goals))

    def beside() -> Comparison:
        def acting(**settings: object) -> Side:
            return partial(act_alone, HUNT, steps(300_000, 16 * EPISODES), 16, agents=3, **settings)

        hanging = MetricsConfig(sinks=("csv", "tensorboard", "bench.training_work:HangingSink"))
        sides = {
            "alone": acting(),
            "a hanging sink": acting(metrics=hanging),
            "an evaluator": acting(evaluation=EvaluationConfig(interval=10_000)),
        }
        goals = Goal("a hanging sink", 0.99, "alone"), Goal("an evaluator", 0.95, "alone")
        return Comparison("treasure_hunt, 16 copies, beside others", sides, goals)

    def learners() -> Comparison:
        sides: dict[str, Side] = {}
        for agents in (1, 3):
            hunt = partial(TreasureHunt, agents=agents)
            acting = partial(act_alone, hunt, steps(60_000, 4 * EPISODES), 4, agents=agents)
            training = partial(acting, learner=LearnerConfig(warmup=1000, device="cpu"))
            sides |= {f"{agents} alone": acting, f"{agents} while learners train": training}
        return Comparison(
            "treasure_hunt, 4 copies, by agents", sides, (Goal("1 while learners train", 0.9, "1 alone"),)
        )

    def vectorized() -> Comparison:
        sides = {f"{n} copies": partial(act_alone, partial(CARTPOLES, n), steps(1_000_000), n) for n in (64, 256)}
        return Comparison("vectorized CartPole, acting alone", sides, (Goal("64 copies", 200_000),))

    def modes() -> Comparison:
        setting = balanced(steps(60_000))
        sides = {mode: partial(ours, CARTPOLE, setting, 1, steps(60_000), mode) for mode in ("async", "serial")}
        name = f"CartPole, {setting.updates_per_step:.3f} updates a step: actor and learner take equal time"
        return Comparison(name, sides, (Goal("async", 1.7, "serial"),))

    def designs() -> Comparison:
        sides = {
            "marlcore": partial(ours, HUNT, SEEDS, 3, steps(120_000, 16 * EPISODES)),
            "pickles in mp.Queue": partial(peer, "designs:train_by_pickles", SEEDS, 3, steps(30_000)),
            "shared arrays with mp.Lock": partial(peer, "designs:train_by_locks", SEEDS, 3, steps(30_000)),
        }
        goals = tuple(Goal("marlcore", 5, name) for name in list(sides)[1:])
        return Comparison("treasure_hunt, 3 learners, 0.1 updates a step", sides, goals)

    def on_policy() -> Comparison:
        sides: dict[str, Side] = {
            "marlcore": partial(ours_on_policy, CARTPOLE, steps(400_000)),
            "marlcore, 64 copies": partial(ours_on_policy, partial(CARTPOLES, 64), steps(800_000)),
            "marlcore, 2 actors": partial(ours_on_policy, CARTPOLE, steps(400_000), actors=2),
            "marlcore, serial": partial(ours_on_policy, CARTPOLE, steps(200_000), "serial"),
            "Stable-Baselines3": partial(peer, "sb3:train_ppo", PPO, 1, steps(100_000)),
        }
        if not SAMPLE_FACTORY.missing:
            sides["Sample Factory 2.1.1"] = appo_rate
        goals = [Goal("marlcore", 3, other) for other in list(sides)[4:]]
        return Comparison("CartPole, PPO, one step on each 512 transitions", sides, tuple(goals))

    makers = dqn, acting, beside, learners, vectorized, modes, designs, on_policy
    return {make.__name__: make for make in makers}


def balanced(steps: int) -> Setting:
    """The setting in which a learner's updates take as long as its actor's steps, by the times of two serial runs."""
    few, many = (replace(DQN, updates_per_step=ratio) for ratio in (0.02, 0.25))
    fast, slow = (1 / ours(CARTPOLE, setting, 1, steps, "serial") for setting in (few, many))
    update = (slow - fast) / (many.updates_per_step - few.updates_per_step)
    return replace(DQN, updates_per_step=(fast - few.updates_per_step * update) / update)


def measure(row: Comparison, rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in row.sides}
    for _ in range(rounds):
        for name, side in row.sides.items():
            rates[name].append(side())
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--row", action="append", choices=list(rows()), help="of these alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of each run")
    options = parse_if_idle(parser)
    torch.set_num_threads(1)
    logging.getLogger("marlcore").setLevel(logging.ERROR)  # who acts alone learns nothing, as it would warn
    machine = describe_machine()
    sys.stdout.write("\n".join(machine.values()) + "\n")
    if SAMPLE_FACTORY.missing:
        sys.stdout.write(f"skipped: Sample Factory; {SAMPLE_FACTORY.missing}\n")
    figures: dict[str, dict[str, list[float]]] = {}
    for name, make in rows(options.scale).items():
        if options.row and name not in options.row:
            continue
        row = make()
        before = os.getloadavg()[0]
        figures[row.name] = rates = measure(row, options.rounds)
        sys.stdout.write(f"\n{row.name} (load {before:.1f} before, {os.getloadavg()[0]:.1f} after)\n")
        for side, measured in rates.items():
            sys.stdout.write(f"  {side:<28} {median(measured):>10,.0f} steps/s\n")
        for goal in row.goals:
            sys.stdout.write(f"  {goal.text(rates)}\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "steps_per_s": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
