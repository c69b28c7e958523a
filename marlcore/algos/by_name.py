"""Finds and makes the algorithms by their names."""

from typing import Any

from ..checks import brief, did_you_mean
from ..interfaces import Algorithm
from ..references import reference_to, resolve
from .bc import BC
from .coma import COMA
from .cql import CQL
from .dqn import DQN
from .happo import HAPPO
from .iqn import IQN
from .maddpg import MADDPG
from .matd3 import MATD3
from .ppo import MAPPO, PPO
from .qmix import QMIX
from .r2d2 import R2D2
from .recurrent_ppo import RecurrentPPO
from .sac import SAC
from .td3 import TD3
from .td3_bc import TD3BC
from .vdn import VDN

_KINDS = BC, COMA, CQL, DQN, HAPPO, IQN, MADDPG, MAPPO, MATD3, PPO, QMIX, R2D2, RecurrentPPO, SAC, TD3, TD3BC, VDN
ALGORITHMS: dict[str, type[Algorithm]] = {kind.__name__.lower(): kind for kind in _KINDS}


def find(name: str) -> type[Algorithm]:
    """Returns an algorithm's class: one of ALGORITHMS by name, such as "dqn", or your own by "module:Class".

    Raises: ValueError: no algorithm has this name, or the import fails.
    """
    if name.lower() in ALGORITHMS:
        return ALGORITHMS[name.lower()]
    if ":" not in name:
        hint = did_you_mean(name.lower(), ALGORITHMS)
        known = ", ".join(sorted(ALGORITHMS))
        raise ValueError(f"algorithm: expected one of {known} or module:Class, got {brief(name)}{hint}")
    kind = resolve("algorithm", name)
    if not isinstance(kind, type):
        raise ValueError(f"algorithm: expected module:Class, got {brief(name)}, which is no class")
    return kind


def make(name: str, /, **hyperparameters: Any) -> Algorithm:
    """Returns an algorithm of the class that `find` returns; hyperparameters not given have their defaults."""
    return find(name)(**hyperparameters)


def name_of(algorithm: Algorithm) -> str:
    """Returns the name by which `find` finds the algorithm's class, provided that the class can be imported."""
    kind = type(algorithm)
    known = ALGORITHMS.get(kind.__name__.lower()) is kind
    return kind.__name__ if known else str(reference_to(kind))
