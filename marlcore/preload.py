"""What a worker of marlcore needs: the fork server imports this module once, so that no worker has to."""

from __future__ import annotations

import cloudpickle  # noqa: F401
import numpy as np
import torch

from . import queue, replay, training  # noqa: F401
from .kernels.random import next_random
from .training import roles  # noqa: F401

# Before anything is computed: OpenMP's threads would be missing in a forked process, which would wait for them.
torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first optimizer imports torch's compiler
next_random(np.ones(4, np.uint64))  # the first kernel imports half of Numba
