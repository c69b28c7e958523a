"""An example of sorrel, run by sorrel's own loop or by run_experiment_mp; a program for sorrel's environment.

It prints one line of JSON: updates, agent-steps, seconds, the seconds before the first turn, and each epoch's score.
"""

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from sorrel.entities.basic_entities import EmptyEntity as Nothing
from sorrel.examples import cleanup
from sorrel.examples.cleanup.entities import EmptyEntity as EmptyPlot
from sorrel.examples.cleanup.env import CleanupEnv
from sorrel.examples.cleanup.world import CleanupWorld
from sorrel.examples.tag.env import TagEnv
from sorrel.examples.treasurehunt.entities import EmptyEntity
from sorrel.examples.treasurehunt.env import TreasurehuntEnv
from sorrel.examples.treasurehunt.world import TreasurehuntWorld
from sorrel.utils.logging import Logger
from sorrel.worlds import Gridworld

WORLD = {"height": 21, "width": 21, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.005}


def make(agents: int, epochs: int, turns: int, seed: int, world: str = "treasurehunt") -> Any:
    """sorrel's example, with sorrel's own settings of the model and the world."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    experiment = {"epochs": epochs - 1, "max_turns": turns, "record_period": 50}
    if world == "tag":
        size = {"height": 11, "width": 11, "layers": 1}
        config = {"experiment": experiment, "model": {"epsilon_decay": 0.0001}, "world": size,
                  "agent": {"num_agents": agents, "vision_radius": 4}}  # fmt: skip
        return TagEnv(Gridworld(**size, default_entity=Nothing()), config)
    if world == "cleanup":
        own = OmegaConf.load(Path(cleanup.__path__[0]) / "configs" / "config.yaml")
        config = OmegaConf.merge(own, {"experiment": experiment, "agent": {"agent": {"num": agents}}})
        return CleanupEnv(CleanupWorld(config=config, default_entity=EmptyPlot()), config)
    model = {"agent_vision_radius": 2, "epsilon_decay": 0.0005, "observation_spec": "onehot", "num_agents": agents}
    config = {"experiment": experiment, "model": model, "world": WORLD}
    return TreasurehuntEnv(TreasurehuntWorld(config=config, default_entity=EmptyEntity()), config)


def sequential(env: Any) -> dict[str, Any]:
    updates = [0]
    step = env._model_train_step

    def counted(agent: Any) -> Any:
        updates[0] += 1
        return step(agent)

    env._model_train_step = counted
    experiment, logger = env.config.experiment, Logger(env.config.experiment.epochs)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        env.run_experiment(animate=False, logger=logger, output_dir=Path(folder))
    seconds = time.perf_counter() - began
    steps = (experiment.epochs + 1) * experiment.max_turns * len(env.agents)
    return {"updates": updates[0], "steps": steps, "seconds": seconds, "start_s": 0.0, "scores": logger.rewards}


def in_processes(env: Any, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    from marlcore.compat.sorrel import run_experiment_mp

    logger = Logger(env.config.experiment.epochs)
    done = run_experiment_mp(env, logger=logger, seed=seed, **options)
    names = "updates", "steps", "seconds", "start_s", "restarts"
    return {"scores": logger.rewards, **{name: getattr(done, name) for name in names}}


if __name__ == "__main__":
    setting = json.loads(sys.argv[1])
    before = sum(os.times()[:4])
    torch.set_num_threads(1)
    environment = make(setting["agents"], setting["epochs"], setting["turns"], setting["seed"], setting["world"])
    own = setting["side"] == "sequential"
    result = sequential(environment) if own else in_processes(environment, setting["seed"], setting["options"])
    result["scores"] = [float(score) for score in result["scores"]]
    result["cpu_s"] = sum(os.times()[:4]) - before  # of all processes, with the start of those of run_experiment_mp
    print(json.dumps(result))
