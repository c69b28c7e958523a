"""Weights behind one lock: a shared model, copied to and from through its state dict."""

from __future__ import annotations

from multiprocessing import get_context

from torch import nn


class LockedModel:
    """A model in shared memory that one process publishes to and others pull from, with the lock held."""

    def __init__(self, shared: nn.Module) -> None:
        context = get_context("spawn")
        self.shared = shared.share_memory()
        self.lock = context.Lock()
        self.version = context.Value("q", 0)

    def publish(self, model: nn.Module) -> int:
        with self.lock:
            self.shared.load_state_dict(model.state_dict())
            self.version.value += 1
            return int(self.version.value)

    def pull(self, model: nn.Module) -> None:
        with self.lock:
            model.load_state_dict(self.shared.state_dict())
