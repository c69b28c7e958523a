"""sorrel's buffer and sorrel's experiments on marlcore: `Buffer` and `run_experiment_mp`.

`Buffer` stands for sorrel.buffers.Buffer, in shared memory. `run_experiment_mp(env)` is `env.run_experiment()` in
processes: an actor steps the world, a learner for each model calls the model's own `train_step`. The classes of
`Environment`, `Agent` and model are sorrel's own, unchanged; sorrel is never imported here, unless it draws a GIF.

    packing, nameless     how objects travel: pickles whose memories stay where they are; pipes and files without names
    clock                 how actor and learners wait for one another
    memory, whole         which rings stand for a model's memory; a whole model saved and restored
    actor, learner        the two roles; role is their common part
    session, book         the parent: processes, and what its Logger records
"""

from __future__ import annotations

from .buffer import Buffer
from .experiment import Experiment, run_experiment_mp
