"""One run of BenchMARL on a task of MPE; a program for BenchMARL's environment: TASK ALGORITHM STEPS SEED CHANGES.

The settings are BenchMARL's own, with these changes (JSON); networks, episodes and discrete actions are the
presets'. It prints a line of JSON: steps, an agent's mean return in greedy episodes after them, and seconds.
"""

import json
import os
import sys
import tempfile
import time
from statistics import fmean
from typing import Any

import torch
from benchmarl.algorithms import algorithm_config_registry
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

EPISODES = 100  # of the evaluation


class Returns(Callback):  # type: ignore[misc]
    """The mean return of an agent in the last evaluation."""

    last: float

    def on_evaluation_end(self, rollouts: list[Any]) -> None:
        agents = [(group, len(names)) for group, names in self.experiment.group_map.items()]
        sums = [sum(episode[("next", group, "reward")].sum().item() for group, _ in agents) for episode in rollouts]
        self.last = fmean(sums) / sum(count for _, count in agents)


class TimedExperiment(Experiment):  # type: ignore[misc]
    """Evaluates only after its last step, and measures the time of that."""

    evaluating = evaluating_cpu = 0.0

    def _evaluation_loop(self) -> None:
        if self.total_frames < self.config.max_n_frames:
            return
        began, used = time.monotonic(), cpu_seconds()
        super()._evaluation_loop()
        self.evaluating += time.monotonic() - began
        self.evaluating_cpu += cpu_seconds() - used


def cpu_seconds() -> float:
    return sum(os.times()[:4])


def main(task: str, algorithm: str, steps: int, seed: int, changes: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    began, used = time.monotonic(), cpu_seconds()
    chosen = algorithm_config_registry[algorithm].get_from_yaml()
    game = PettingZooTask[task.upper()].get_from_yaml()
    game.config["max_cycles"] = 25
    if task == "simple_tag":
        game.config["num_good"] = 1
    model, config = MlpConfig.get_from_yaml(), ExperimentConfig.get_from_yaml()
    model.num_cells, config.prefer_continuous_actions = [64, 64], False
    for name, value in changes.items():
        setattr(config, name, value)
    batch = config.collected_frames_per_batch(chosen.on_policy())
    config.max_n_frames = config.evaluation_interval = -(-steps // batch) * batch
    config.evaluation_episodes, config.loggers, config.render = EPISODES, [], False
    returns, parts = Returns(), {"task": game, "algorithm_config": chosen, "model_config": model}
    with tempfile.TemporaryDirectory() as config.save_folder:
        experiment = TimedExperiment(**parts, critic_model_config=model, seed=seed, config=config, callbacks=[returns])
        experiment.run()
    seconds = time.monotonic() - began - experiment.evaluating
    found = {"steps": experiment.total_frames, "last": returns.last, "seconds": round(seconds)}
    print(json.dumps({**found, "cpu": round(cpu_seconds() - used - experiment.evaluating_cpu)}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), json.loads(sys.argv[5]))
