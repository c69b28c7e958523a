"""The further imports of workers with torch, for the fork server."""

from importlib.util import find_spec

from .lazy import is_installed

if find_spec("torch"):
    import torch

    # Set before any computation: a forked process has no OpenMP threads and would wait for them forever.
    torch.set_num_threads(1)
if is_installed("train"):
    from .loops import network, torch_network  # noqa: F401
    from .run.roles import learner  # noqa: F401
