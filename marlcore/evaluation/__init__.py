"""A run's policies outside of its workers: loading them, and evaluating them."""

from .evaluated_run import EvaluatedRun, evaluate
from .loaded_policy import LoadedPolicy, SavedRun, load_policy, named, published_policy, save_policies
