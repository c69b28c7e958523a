"""cpprb's buffers for several processes: any may add and sample, and a dead process blocks no other."""

from multiprocessing import ProcessError, managers
from typing import Any

from numpy.typing import DTypeLike

from ..ring import Ring, whole_number
from .base import EnvDict, RingBuffer, fields_of
from .prioritized import PrioritizedBuffer

_BACKENDS = ("sharedctypes", "SharedMemory")


class MPReplayBuffer(RingBuffer):
    """A ring of transitions that any process may add to and sample from; pass the object itself to a process.

    Args:
        size: transitions held, at least 1.
        env_dict: by field name, a dict with the field's "shape" (default 1) and "dtype" (default `default_dtype`).
        default_dtype: NumPy dtype of fields without their own; float32 by default.
        logger, ctx, backend: accepted for compatibility.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the buffer.
        multiprocessing.ProcessError: ctx is a manager that has shut down.
    """

    def __init__(
        self,
        size: int,
        env_dict: EnvDict | None = None,
        *,
        default_dtype: DTypeLike | None = None,
        logger: Any = None,
        ctx: Any = None,
        backend: str = "sharedctypes",
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend: expected one of {_BACKENDS}, got {backend!r}")
        if not env_dict:
            raise ValueError(f"env_dict: expected a dict of at least one field, got {env_dict!r}")
        known: Any = managers  # its type stubs lack the state
        if isinstance(ctx, known.BaseManager) and ctx._state.value == known.State.SHUTDOWN:
            raise ProcessError("ctx: expected a context or a manager, got a manager that has shut down")
        fields = fields_of(env_dict, default_dtype, self._own_fields)
        ring = Ring({**fields, **self._own_fields}, whole_number("size", size, 1), shared=True)
        super().__init__(ring, fields)


class MPPrioritizedReplayBuffer(PrioritizedBuffer, MPReplayBuffer):
    """An MPReplayBuffer sampled in proportion to (priority + eps) ** alpha (Schaul et al. 2016, section 3.3).

    The process that samples, the learner, keeps the priorities: before each sample or update, it reads the priorities
    that `add` stored with new rows.

    Args:
        size, env_dict: see MPReplayBuffer.
        alpha: exponent of the priorities, at least 0.
        eps: added to each priority, at least 0.
        kwargs: further arguments of MPReplayBuffer.

    Raises: see MPReplayBuffer.
    """
