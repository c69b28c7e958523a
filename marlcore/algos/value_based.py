"""What algorithms that learn action values have in common: their rows, how they sample, and epsilon-greedy actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch

from ..interfaces import Action, Algorithm, ReplaySource
from ..spaces import Spaces
from ..spec import TransitionSpec
from .exploration import epsilon_greedy
from .first_priority import source_with_priority, with_priority
from .joint import JointActions
from .qnetwork import QNetwork

__all__ = ["ValueBased"]


class ValueBased(Algorithm):
    """Base of algorithms whose model is a QNetwork.

    Attributes:
        owner: the algorithm's name in messages.
        actor_priorities: a hyperparameter; actors compute each transition's first priority.
    """

    owner: ClassVar[str]
    actor_priorities: bool

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row, whose only extra is the first priority if actors compute it. Raises ValueError: see JointActions."""
        JointActions(self.owner, spaces.action)
        spec = super().transition(spaces)
        return with_priority(spec) if self.actor_priorities else spec

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """What was chosen; with first priorities if actors compute them."""
        return source_with_priority(chosen) if self.actor_priorities else chosen

    def act(
        self,
        model: torch.nn.Module,
        obs: Any,
        *,
        explore: Mapping[str, Any] | None,
        state: Mapping[str, torch.Tensor] | None,
        mask: torch.Tensor | None,
        generator: np.random.Generator,
    ) -> Action:
        """Epsilon-greedy actions; `explore` holds "epsilon"."""
        return epsilon_greedy(cast(QNetwork, model), obs, explore, mask, generator, self.actor_priorities)
