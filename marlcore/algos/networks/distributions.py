"""Distributions over the actions of each kind of space, given the outputs of a policy network.

`outputs` is the number of network outputs that a distribution takes, `extras` the fields that rows store beside the
action. `sample` draws k actions by outputs [k, outputs], with NumPy and the actor's generator; `mode` returns the most
probable ones, as a tensor. A call returns the log-probabilities [B] of a batch's actions and the entropies [B], with
torch. `mask`, bool [k, outputs], holds the allowed values of each component.
"""

import math
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ...checks import brief
from ...kernels.policies import draw_category
from ...spec import Field
from .actions import dtype_of

DRAWN = "drawn"  # the extra in which rows store what a Gaussian drew


# Actions [k, ...] in the space's dtype, their log-probabilities float32 [k], and further extras of rows
Sampled = tuple[NDArray[Any], NDArray[np.float32], dict[str, NDArray[Any]]]


def distribution_of(owner: str, space: gymnasium.Space) -> "Categorical | Bernoulli | Gaussian":
    """Returns the distribution over a space's actions. Raises ValueError, which begins with `owner`: there is none."""
    if isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        return Categorical(space)
    if isinstance(space, gym.MultiBinary):
        return Bernoulli(space)
    if isinstance(space, gym.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space)
    expected = "a Discrete, MultiDiscrete, MultiBinary or Box of floats as action space"
    raise ValueError(f"{owner}: expected {expected}, got {brief(space)}")


class Categorical(nn.Module):
    """Distribution of a Discrete, or of the components of a MultiDiscrete, independent of each other."""

    def __init__(self, space: gym.Discrete | gym.MultiDiscrete) -> None:
        super().__init__()
        self._sizes = [int(size) for size in np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0)))]
        self._alone = not space.shape
        self._dtype = np.dtype(space.dtype)
        self.outputs = sum(self._sizes)
        self.extras: dict[str, Field] = {}

    def sample(self, output: torch.Tensor, mask: torch.Tensor | None, generator: np.random.Generator) -> Sampled:
        outputs, rows, first = masked(output, mask).cpu().numpy(), len(output), 0
        drawn, log_prob = [], np.zeros(rows, np.float32)
        for size in self._sizes:
            drawn.append(np.empty(rows, np.int64))
            draw_category(outputs, first, first + size, generator.random(rows), drawn[-1], log_prob)
            first += size
        action = drawn[0] if self._alone else np.stack(drawn, 1)
        return action.astype(self._dtype, copy=False), log_prob, {}

    def mode(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        parts = [part.argmax(1) for part in torch.split(masked(output, mask), self._sizes, 1)]
        return (parts[0] if self._alone else torch.stack(parts, 1)).to(dtype_of(self._dtype))

    def forward(self, output: torch.Tensor, mask: torch.Tensor | None, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        actions = batch.action.long().reshape(len(output), -1)
        parts = torch.split(output, self._sizes, 1)
        masks = [None] * len(parts) if mask is None else torch.split(mask, self._sizes, 1)
        logs = [torch.log_softmax(masked(*pair), 1) for pair in zip(parts, masks, strict=True)]
        taken = [log.gather(1, actions[:, i, None]).squeeze(1) for i, log in enumerate(logs)]
        return reduce(torch.add, taken), reduce(torch.add, map(entropy_of, logs))


class Bernoulli(nn.Module):
    """Distribution of a MultiBinary: each value is 1 with its own probability."""

    def __init__(self, space: gym.MultiBinary) -> None:
        super().__init__()
        self._shape: tuple[int, ...] = space.shape
        self._dtype = np.dtype(space.dtype)
        self.outputs = math.prod(space.shape)
        self.extras: dict[str, Field] = {}

    def sample(self, output: torch.Tensor, mask: torch.Tensor | None, generator: np.random.Generator) -> Sampled:
        ones = generator.random(output.shape) < torch.sigmoid(output).cpu().numpy()
        drawn = torch.from_numpy(ones).to(output.device)
        action = ones.reshape(-1, *self._shape).astype(self._dtype)
        return action, _log_prob_of_bits(output, drawn).cpu().numpy(), {}

    def mode(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return (output > 0).reshape(-1, *self._shape).to(dtype_of(self._dtype))

    def forward(self, output: torch.Tensor, mask: torch.Tensor | None, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ones = batch.action.reshape(output.shape).bool()
        entropy = (functional.softplus(output) - output * torch.sigmoid(output)).sum(1)
        return _log_prob_of_bits(output, ones), entropy


class Gaussian(nn.Module):
    """Distribution of a Box: a diagonal normal distribution, whose standard deviations are separate parameters.

    A draw is in units of half the range from its centre, or of 1 from 0 where the space has no bounds. The environment
    gets it clipped to the space, as is usual (Huang et al. 2022, "The 37 implementation details of proximal policy
    optimization"); rows also store the unclipped draw, since only its probability is known.
    """

    def __init__(self, space: gym.Box) -> None:
        super().__init__()
        self._shape: tuple[int, ...] = space.shape
        self._dtype = np.dtype(space.dtype)
        self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
        bounded = np.isfinite(self._low) & np.isfinite(self._high)
        low, high = np.where(bounded, self._low, -1.0), np.where(bounded, self._high, 1.0)
        self._centre, self._half = low / 2 + high / 2, high / 2 - low / 2  # the bounds' sum may exceed a float32
        self.outputs = math.prod(space.shape)
        self.extras = {DRAWN: Field(self._shape, "float32")}
        self.log_std = nn.Parameter(torch.zeros(self.outputs))

    def sample(self, output: torch.Tensor, mask: torch.Tensor | None, generator: np.random.Generator) -> Sampled:
        mean, log_std = output.cpu().numpy(), self.log_std.detach().cpu().numpy()
        noise = generator.standard_normal(mean.shape, np.float32)
        drawn = mean + np.exp(log_std) * noise
        log_prob = -(0.5 * noise * noise + log_std + 0.5 * math.log(2 * math.pi)).sum(1)
        with np.errstate(over="ignore"):  # a draw may lie beyond such bounds
            action = np.clip(self._centre + self._half * drawn, self._low, self._high).astype(self._dtype)
        return action.reshape(-1, *self._shape), log_prob, {DRAWN: drawn.reshape(-1, *self._shape)}

    def mode(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        bounds = (self._centre, self._half, self._low, self._high)
        centre, half, low, high = (torch.tensor(bound, device=output.device) for bound in bounds)
        action = torch.clamp(centre + half * output, low, high)
        return action.to(dtype_of(self._dtype)).reshape(-1, *self._shape)

    def forward(self, output: torch.Tensor, mask: torch.Tensor | None, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        noise = (self._drawn(batch).reshape(output.shape) - output) * torch.exp(-self.log_std)
        half = 0.5 * math.log(2 * math.pi)
        log_prob = -(0.5 * noise * noise + self.log_std + half).sum(1)
        return log_prob, (self.log_std + half + 0.5).sum().expand(len(output))

    def _drawn(self, batch: Any) -> Any:
        """Returns the draws that rows store, or for demonstrations, which store none, the actions in units of draws."""
        if DRAWN in batch.extras:
            return batch.extras[DRAWN]
        action = batch.action.reshape(len(batch.action), -1)
        divisor = np.where(self._half > 0, self._half, 1.0)
        centre, half = (torch.from_numpy(numbers).to(action.device) for numbers in (self._centre, divisor))
        return ((action - centre) / half).float()


def _log_prob_of_bits(output: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    return -functional.softplus(torch.where(ones, -output, output)).sum(1)


def masked(output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the outputs [..., outputs], -inf where the mask, bool of the same shape, forbids an action.

    Rows of padding, where the mask allows no action, get 0, since a softmax of infinities alone is NaN.
    """
    if mask is None:
        return output
    return output.masked_fill(~mask, -math.inf).masked_fill(~mask.any(-1, keepdim=True), 0.0)


def entropy_of(log_probs: torch.Tensor) -> torch.Tensor:
    """Returns the entropies [...] of log-probabilities [..., outputs], which are -inf for forbidden actions."""
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 times -inf is NaN, in the gradient too
    return -(log_probs.exp() * finite).sum(-1)
