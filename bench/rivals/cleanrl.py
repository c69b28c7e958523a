"""CleanRL's own ppo.py or dqn.py, from a checkout named by MARLCORE_BENCH_SOURCES; its log tells the steps.

DQN has CleanRL's layers, 120 and 84 units, and one copy.
"""

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from ..peers.setting import Setting
from .side import Tell


def train(setting: Setting, tell: Tell, form: str) -> None:
    options: dict[str, Any] = {"total-timesteps": 10**9, "learning-rate": setting.learning_rate, "gamma": setting.gamma}
    options |= {"num-envs": setting.copies}
    if setting.algorithm == "ppo":
        options |= {"num-steps": setting.batch // setting.copies, "update-epochs": setting.epochs}
        options |= {"num-minibatches": setting.batch // setting.minibatch, "no-anneal-lr": None}
    else:
        options |= {"buffer-size": setting.capacity, "learning-starts": setting.warmup, "batch-size": setting.batch}
        options |= {"train-frequency": round(1 / setting.updates_per_step), "start-e": setting.epsilon}
        options |= {"target-network-frequency": round(setting.target_updates / setting.updates_per_step)}

    counted = [0]

    def count(*_: object) -> None:
        counted[0] += 1

    class Writer:
        def __init__(self, _: str) -> None: ...

        def add_text(self, *_: object) -> None: ...

        def add_scalar(self, name: str, _: object, step: int) -> None:
            if name == "charts/SPS" and not tell(step, counted[0]):
                sys.exit()

    register_optimizer_step_post_hook(count)
    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer  # type: ignore[attr-defined]
    sys.modules[board.__name__] = board
    checkout = Path(os.environ["MARLCORE_BENCH_SOURCES"]) / "cleanrl"
    sys.path.insert(0, str(checkout))
    script = checkout / "cleanrl" / f"{setting.algorithm}.py"
    words = (f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items())
    sys.argv = [str(script), *words]
    runpy.run_path(str(script), run_name="__main__")
