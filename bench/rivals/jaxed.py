"""PureJaxRL's PPO, or JaxMARL's IPPO, from checkouts named by MARLCORE_BENCH_SOURCES: all of it one call of XLA.

Their environments are in JAX too. A call trains from the start; a run is one call after the other.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from ..peers.setting import Setting
from .side import Tell

TRAINING = "brax.envs.wrappers.training"
ROWS = 100_000  # of a call, or a batch more
FILES = {  # with the modules that they import, and need for none of this
    "PureJaxRL": ("purejaxrl/purejaxrl", "ppo", ("brax", "brax.envs", "brax.envs.wrappers", TRAINING, "navix")),
    "JaxMARL": ("jaxmarl/baselines/IPPO", "ippo_ff_mpe", ("wandb", "hydra", "omegaconf")),
}


def train(setting: Setting, tell: Tell, form: str) -> None:
    folder, file, absent = FILES[form]
    sys.modules |= {name: Anything(name) for name in absent}
    sys.path.insert(0, str(Path(os.environ["MARLCORE_BENCH_SOURCES"]) / folder))
    batches, steps, updates = 1 + ROWS // setting.batch, 0.0, 0.0
    of_agent = setting.batch // setting.agents
    config = {
        "LR": setting.learning_rate, "NUM_ENVS": setting.copies, "NUM_STEPS": of_agent // setting.copies,
        "TOTAL_TIMESTEPS": batches * of_agent, "UPDATE_EPOCHS": setting.epochs,
        "NUM_MINIBATCHES": setting.batch // setting.minibatch, "GAMMA": setting.gamma, "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2, "ENT_COEF": 0.0, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh",
        "ENV_NAME": setting.env, "ENV_KWARGS": {}, "ANNEAL_LR": False,
    }  # fmt: skip
    run = jax.jit(import_module(file).make_train(config))
    while tell(steps, updates):
        jax.block_until_ready(run(jax.random.PRNGKey(int(steps)))["runner_state"])
        steps += batches * setting.batch
        updates = steps * setting.updates_per_step


class Anything(ModuleType):
    """A module with every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: lambda function: function
