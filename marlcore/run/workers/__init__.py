"""A run's workers: each builds its loop from a picklable blueprint, and runs it in its own process or in turn.

Here loops meet shared memory and the run directory: writers, samplers, weights, counters, metrics, checkpoints. A
worker that was killed is followed by one that continues from what shared memory and the last checkpoint hold.
"""

from .actor_worker import ActorWorker
from .evaluator_worker import EvaluatorWorker
from .learner_worker import LearnerWorker
from .shares import deal_steps, dealt
from .storage import attach_storage, create_storage, create_weights, spec_of
from .worker import Blueprint, PolicyBlueprint, Worker
