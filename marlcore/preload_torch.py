"""The further imports of workers that use torch. Their fork server runs this module once."""

from importlib.util import find_spec

import numpy as np

from .kernels import jit
from .kernels.priorities import first_bad
from .lazy import is_installed

jit.announced()
first_bad(np.ones(1), 1.0)  # the first kernel imports half of Numba
if find_spec("torch"):
    import torch

    # Set before any computation: a forked process has no OpenMP threads and would wait for them forever.
    torch.set_num_threads(1)
if is_installed("train"):
    from .loops import torch_network  # noqa: F401
    from .run.roles import learner  # noqa: F401
