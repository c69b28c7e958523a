"""cpprb's buffers in marlcore's shared memory: only the import changes, and a dead process blocks no other.

    from marlcore.compat.cpprb import MPPrioritizedReplayBuffer, MPReplayBuffer  # for several processes
    from marlcore.compat.cpprb import PrioritizedReplayBuffer, ReplayBuffer, create_buffer, train  # for one
    from marlcore.compat.cpprb import create_before_add_func, create_env_dict  # from an environment's spaces

Methods, results, shapes, dtypes and, for a seed of NumPy, uniform draws equal those of cpprb 11, which need not be
installed; docs/drop-ins.md lists the differences.
"""

from .base import MPReplayBuffer
from .loop import train
from .one_process import PrioritizedReplayBuffer, ReplayBuffer, create_buffer
from .prioritized import MPPrioritizedReplayBuffer
from .spaces import create_before_add_func, create_env_dict
