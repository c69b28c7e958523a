"""The imports of workers without torch; the fork server runs this module once, so that they start with them loaded."""

import cloudpickle  # noqa: F401
import numpy as np

from . import queue, replay  # noqa: F401
from .kernels import jit
from .kernels.random import next_random
from .lazy import is_installed

jit.announced()
next_random(np.ones(4, np.uint64))  # the first kernel imports half of Numba
if is_installed("train"):
    from . import self_play  # noqa: F401
    from .run import async_run  # noqa: F401
    from .run.roles import actor, evaluator  # noqa: F401
