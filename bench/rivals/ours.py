"""marlcore's runs. A form is the mode and any of these words.

`torch`: that engine; `singly`: each copy is stepped by itself; `twice`: two runs; `sink`: one that hangs; `evaluator`;
`acting`: a learner updates once in a million steps.
"""

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

import marlcore as mc
from marlcore.envs import TreasureHunt

from ..peers.setting import Setting
from ..runs.training import endless
from .side import Tell

LOOK_S = 0.1
HARDLY = 1e-6  # updates a step, where only acting counts
SPREAD = "MPE_simple_spread_v3"


def train(setting: Setting, tell: Tell, form: str) -> None:
    mode, *words = form.split()
    with ExitStack() as stack:
        config = configured(setting, mode, words)
        if setting.nodes > 1:
            from ray_nodes import RayNodes

            nodes = stack.enter_context(RayNodes(setting.nodes, cpus=1))
            away = mc.ClusterConfig(nodes.address, nodes=1, actors_per_node=1, lease_seconds=16.0)
            config = replace(config, cluster=away)
        parts = env_of(setting, "singly" in words), algorithm_of(setting), config
        runs = [stack.enter_context(endless(*parts)) for _ in range(1 + ("twice" in words))]
        going = True
        while going and not any(run.done for run in runs):
            time.sleep(LOOK_S)
            seen = [run.status() for run in runs]
            updates = sum(sum(status.updates.values()) for status in seen)
            going = tell(sum(status.steps for status in seen), updates)


def env_of(setting: Setting, singly: bool) -> Any:
    if setting.env == "treasure_hunt":
        return partial(TreasureHunt, agents=setting.agents)
    if setting.env == SPREAD:
        return mc.NamedEnvironment("pettingzoo-parallel:mpe2.simple_spread_v3")
    return partial(gymnasium.make, setting.env) if singly else mc.NamedEnvironment(f"gymnasium:{setting.env}")


def algorithm_of(setting: Setting) -> Any:
    every = {"learning_rate": setting.learning_rate, "hidden": setting.hidden}
    if setting.algorithm == "dqn":
        plain = {"double": False, "dueling": False, "reward_scale": 1.0}
        return mc.DQN(**every, **plain, target_update_freq=setting.target_updates)
    if setting.algorithm == "sac":
        return mc.SAC(**every)
    passes = {"epochs": setting.epochs, "batch_size": setting.batch, "minibatch_size": setting.minibatch}
    return mc.PPO(**every, **passes, activation="tanh", target_kl=None)


def configured(setting: Setting, mode: Any, words: list[str]) -> mc.Config:
    engine: Any = "torch" if "torch" in words else "auto"
    terms = {"batch_size": setting.batch, "gamma": setting.gamma, "n_step": 1, "warmup": setting.warmup}
    config = mc.Config(
        mode=mode,
        updates_per_step=HARDLY if "acting" in words else setting.updates_per_step or None,
        updates_tolerance=setting.tolerance,
        policies=dict.fromkeys((f"agent_{i}" for i in range(3)), "all") if setting.env == SPREAD else None,
        actor=mc.ActorConfig(processes=setting.actors // setting.nodes, envs=setting.copies),
        replay=mc.ReplayConfig(capacity=setting.capacity),
        learner=mc.LearnerConfig(**terms, engine=engine, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=setting.epsilon),
    )
    if "sink" in words:
        config = replace(config, metrics=mc.MetricsConfig(sinks=("csv", f"{__name__}:HangingSink")))
    if "evaluator" in words:
        config = replace(config, evaluation=mc.EvaluationConfig(interval=10_000))
    return config


class HangingSink:
    """A sink that never returns from its first metric."""

    def __init__(self, run_dir: Path) -> None: ...

    def record(self, metric: Any) -> None:
        threading.Event().wait()

    flush = close = str  # never reached
