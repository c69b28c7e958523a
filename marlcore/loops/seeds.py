"""Independent seeds for each use of randomness in a run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..config import Config


def run_seed(config: Config, what: str, index: int, begin: int = 0, epoch: int = 0) -> int:
    """Returns a seed that is independent for each use of randomness (`what`, `index`) and each restart (`begin`).

    On another machine, `epoch` is the agent's: the steps at which its actors begin may be those of an earlier agent's.
    """
    key = [config.seed, index, *what.encode(), *([begin, epoch] if epoch else [begin] if begin else [])]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Seeds torch in a `with` block, then restores its generator; does nothing if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
