"""The imports of workers that do not need torch. The fork server runs this module once, before it forks workers."""

import cloudpickle  # noqa: F401

from . import queue, replay  # noqa: F401
from .lazy import is_installed

if is_installed("train"):
    from . import self_play  # noqa: F401
    from .run import async_run  # noqa: F401
    from .run.roles import actor, evaluator  # noqa: F401
