"""sorrel's buffer and sorrel's experiments on marlcore: `Buffer` and `run_experiment_mp`.

`Buffer` replaces sorrel.buffers.Buffer, in shared memory. `run_experiment_mp(env)` is `env.run_experiment()` in several
processes: actors step the world, and a learner for each model calls the model's own `train_step`. The classes of
`Environment`, `Agent` and model are sorrel's own, unchanged; sorrel is imported only for its Logger and its GIFs.
"""

from .buffer import Buffer
from .experiment import run_experiment_mp
from .messages import Experiment
