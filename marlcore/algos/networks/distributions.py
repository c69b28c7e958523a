"""Distributions over the actions of each kind of space, given the outputs of a policy network.

`outputs` is the number of network outputs that a distribution takes, `extras` the fields that rows store beside the
action. `sample` draws k actions, given outputs [k, outputs], with NumPy and the actor's generator (compiled/draws.py);
`mode` returns the most probable actions, as a tensor. A call returns the log-probabilities [B] of a batch's actions and
the entropies [B], with torch. `mask`, bool [k, outputs], holds the allowed values of each component.
"""

import math
from functools import reduce
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn
from torch.nn import functional

from ...checks import brief
from ...compiled import DRAWN, LOG_SQRT_2PI, Bits, Categories, Normals, Sampled
from .actions import array_of, dtype_of


def distribution_of(owner: str, space: gymnasium.Space) -> "Categorical | Bernoulli | Gaussian":
    """Returns the distribution over a space's actions. Raises ValueError, naming `owner`, if the space has none."""
    if isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        return Categorical(space)
    if isinstance(space, gym.MultiBinary):
        return Bernoulli(space)
    if isinstance(space, gym.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space)
    expected = "a Discrete, MultiDiscrete, MultiBinary or Box of floats as action space"
    raise ValueError(f"{owner}: expected {expected}, got {brief(space)}")


class Distribution(nn.Module):
    """Base of distributions; `sample` converts tensors to arrays and calls the subclass's other base, `draws`."""

    draws: ClassVar[Any]

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.draws.__init__(self, space)

    def sample(self, output: torch.Tensor, mask: torch.Tensor | None, generator: np.random.Generator) -> Sampled:
        deviations = array_of(getattr(self, "log_std", None))
        arrays = array_of(output.contiguous()), array_of(mask)
        sampled: Sampled = self.draws.draw(self, *arrays, generator, deviations)
        return sampled


class Categorical(Distribution, Categories):
    """Distribution of a Discrete action, or of a MultiDiscrete's components, which are independent of each other."""

    draws = Categories

    def mode(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        parts = [part.argmax(1) for part in torch.split(masked(output, mask), self.sizes, 1)]
        return (parts[0] if self._alone else torch.stack(parts, 1)).to(dtype_of(self._dtype))

    def forward(self, output: torch.Tensor, mask: torch.Tensor | None, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        actions = batch.action.long().reshape(len(output), -1)
        parts = torch.split(output, self.sizes, 1)
        masks = [None] * len(parts) if mask is None else torch.split(mask, self.sizes, 1)
        logs = [torch.log_softmax(masked(*pair), 1) for pair in zip(parts, masks, strict=True)]
        taken = [log.gather(1, actions[:, i, None]).squeeze(1) for i, log in enumerate(logs)]
        return reduce(torch.add, taken), reduce(torch.add, map(entropy_of, logs))


class Bernoulli(Distribution, Bits):
    """Distribution of a MultiBinary: each value is 1 with its own probability."""

    draws = Bits

    def mode(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return (output > 0).reshape(-1, *self._shape).to(dtype_of(self._dtype))

    def forward(self, output: torch.Tensor, mask: torch.Tensor | None, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ones = batch.action.reshape(output.shape).bool()
        entropy = (functional.softplus(output) - output * torch.sigmoid(output)).sum(1)
        return -functional.softplus(torch.where(ones, -output, output)).sum(1), entropy


class Gaussian(Distribution, Normals):
    """Distribution of a Box: a diagonal normal distribution, whose standard deviations are parameters, not outputs."""

    draws = Normals

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__(space)
        self.log_std = nn.Parameter(torch.zeros(self.outputs))

    def mode(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        bounds = (self._centre, self._half, self._low, self._high)
        centre, half, low, high = (torch.tensor(bound, device=output.device) for bound in bounds)
        action = torch.clamp(centre + half * output, low, high)
        return action.to(dtype_of(self._dtype)).reshape(-1, *self._shape)

    def forward(self, output: torch.Tensor, mask: torch.Tensor | None, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        noise = (self._drawn(batch).reshape(output.shape) - output) * torch.exp(-self.log_std)
        log_prob = -(0.5 * noise * noise + self.log_std + LOG_SQRT_2PI).sum(1)
        return log_prob, (self.log_std + LOG_SQRT_2PI + 0.5).expand(1, self.outputs).sum().expand(len(output))

    def _drawn(self, batch: Any) -> Any:
        """Returns the unclipped draws that rows store; for demonstrations without draws, returns scaled actions."""
        if DRAWN in batch.extras:
            return batch.extras[DRAWN]
        action = batch.action.reshape(len(batch.action), -1)
        divisor = np.where(self._half > 0, self._half, 1.0)
        centre, half = (torch.from_numpy(numbers).to(action.device) for numbers in (self._centre, divisor))
        return ((action - centre) / half).float()


def masked(output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the outputs [..., outputs], with -inf where the mask, bool of the same shape, forbids an action.

    Rows whose mask allows no action, which are padding, get 0: a softmax of infinities alone is NaN.
    """
    if mask is None:
        return output
    return output.masked_fill(~mask, -math.inf).masked_fill(~mask.any(-1, keepdim=True), 0.0)


def entropy_of(log_probs: torch.Tensor) -> torch.Tensor:
    """Returns the entropies [...] of log-probabilities [..., outputs], which are -inf for forbidden actions."""
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 times -inf is NaN, in the gradient too
    return -(log_probs.exp() * finite).sum(-1)
