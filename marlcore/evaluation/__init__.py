"""Loads and evaluates a run's policies outside its workers."""

from .evaluated_run import EvaluatedRun, evaluate, wrapped
from .loaded_policy import LoadedPolicy, SavedRun, load_policy, named, published_policy, save_policies
from .mixed_player import MixedPlayer
