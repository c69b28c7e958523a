"""The imports that workers without torch need; the fork server runs this module once, so that no worker has to."""

import cloudpickle  # noqa: F401

from . import queue, replay  # noqa: F401
from .lazy import is_installed

if is_installed("train"):
    from . import self_play  # noqa: F401
    from .run import async_run  # noqa: F401
    from .run.roles import actor, evaluator  # noqa: F401
