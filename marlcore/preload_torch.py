"""The further imports of workers that learn, or act by torch, for the fork server."""

from importlib.util import find_spec

import numpy as np

from .kernels import jit
from .kernels.random import next_random
from .lazy import is_installed

jit.announced()
next_random(np.ones(4, np.uint64))  # the first kernel imports half of Numba
if find_spec("torch"):
    import torch

    # Set before any computation: a forked process has no OpenMP threads and would wait for them forever.
    torch.set_num_threads(1)
if is_installed("train"):
    from .loops import torch_network  # noqa: F401
    from .run.roles import learner  # noqa: F401
