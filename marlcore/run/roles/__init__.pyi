from .actor import ActorRole as ActorRole
from .evaluator import EvaluatorRole as EvaluatorRole
from .learner import LearnerRole as LearnerRole
from .role import Role as Role
from .role import settle_torch as settle_torch
