"""The imports of a worker; the fork server runs this module once, so that each worker starts with them loaded."""

from __future__ import annotations

from importlib.util import find_spec

import cloudpickle  # noqa: F401
import numpy as np

from . import queue, replay  # noqa: F401
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
    from . import self_play  # noqa: F401
    from .run import roles  # noqa: F401
