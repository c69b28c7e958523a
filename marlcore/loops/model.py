"""A policy's model: its acting part, its normalizations, and the check that its numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..algos.networks.moments import RunningMoments
from ..checks import printable
from ..compiled import LIMIT
from ..config import AssignedPolicy, Config
from ..errors import Diverged
from ..interfaces import RETURN
from ..observations import by_name, in_form
from ..spaces import Spaces
from ..weights import members_kept
from .seeds import run_seed


class Normalizer(RunningMoments):
    """Standardizes each number in an observation's float parts by its running mean and standard deviation.

    Before the first update, observations stay unchanged.
    """

    def __init__(self, spaces: Spaces) -> None:
        super().__init__({part.name: part.field.shape for part in spaces.parts if part.field.numpy.kind == "f"})

    def forward(self, obs: Any) -> Any:
        """Returns the observations with their float parts normalized, float32, within [-10, 10]."""
        return self.normalized(obs) if self.is_active else obs

    @property
    def is_active(self) -> bool:
        return bool(self._parts) and bool(self.count)

    def normalized(self, obs: Any) -> Any:
        """Normalizes observations, which may lack parts, as `forward` does."""
        values = by_name(obs)
        for name in values.keys() & self._parts:
            values[name] = self.normalized_part(name, values[name], LIMIT)
        return in_form(values, obs)


class RewardNormalizer(RunningMoments):
    """Divides rewards by the standard deviation of the discounted return, as VecNormalize of Stable-Baselines3 does.

    A row stores the raw reward and the discounted return of its episode so far. The learner scales rewards when it
    samples them. So only the learner updates the statistics, and its current statistics scale old rows, too.
    """

    def __init__(self) -> None:
        super().__init__({RETURN: ()})

    def forward(self, reward: torch.Tensor) -> torch.Tensor:
        """Returns rewards or n-step returns, scaled and then clipped to [-10, 10], float32."""
        return (reward / self.deviation(RETURN)).clamp(-LIMIT, LIMIT).float()


class PolicyModel(nn.Module):
    """A policy's model. A learner publishes this module's tensors: the acting part's and the normalizations'.

    Attributes:
        whole: the algorithm's whole model, for the learner; not a submodule, so its other tensors are not published.
        model: the acting part of `whole`, by which actors act.
        norm: the normalization of observations.
        rewards: the normalization of rewards, for the actors' first priorities and a restarted learner.
    """

    whole: nn.Module

    def __init__(
        self, whole: nn.Module, norm: Normalizer | None = None, rewards: RewardNormalizer | None = None
    ) -> None:
        super().__init__()
        self.__dict__["whole"] = whole  # does not make it a submodule
        self.model, self.norm, self.rewards = getattr(whole, "acting", whole), norm, rewards

    @property
    def acting(self) -> PolicyModel:
        """The same model without the parts that only the learner uses."""
        return PolicyModel(self.model, self.norm, self.rewards)

    def to(self, *args: Any, **kwargs: Any) -> PolicyModel:
        self.whole.to(*args, **kwargs)
        return super().to(*args, **kwargs)

    def saved(self) -> dict[str, Any]:
        """Returns copies of weights for a checkpoint: torch cannot save views of one storage with different dtypes."""
        return {"network": _copied(self.whole), "norm": _copied(self.norm), "reward_norm": _copied(self.rewards)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the weights of a learner's checkpoint, or an evaluator's, which has only the acting part."""
        if "acting" in state:
            self.load_state_dict(state["acting"])
            return
        self.whole.load_state_dict(state["network"])
        for module, name in ((self.norm, "norm"), (self.rewards, "reward_norm")):
            if module is not None and state.get(name) is not None:
                module.load_state_dict(state[name])

    def initialise(self, state: Mapping[str, Any], strict: bool, policy: str) -> list[str]:
        """Loads weights from another run's checkpoint, or from {"network": a state_dict of the whole network}.

        Leaves out weights whose names or shapes do not fit, and returns their names. Raises ValueError if no weights
        fit or, with `strict`, if some do not.
        """
        first: tuple[nn.Module, Mapping[str, torch.Tensor]]
        first = (self, state["acting"]) if "acting" in state else (self.whole, state.get("network", {}))
        parts, wrong = [first], ""
        normalizations = ((self.norm, "norm", "observations"), (self.rewards, "reward_norm", "rewards"))
        for normalization, name, what in normalizations:
            if normalization is not None and state.get(name) is not None:
                parts.append((normalization, state[name]))
            if name in state and (state[name] is None) != (normalization is None):
                wrong = f"weights for other {what}: only one of the two runs normalizes them"
        fitting: list[dict[str, torch.Tensor]] = []
        left_out: list[str] = []
        missing: list[str] = []
        for module, weights in parts:
            shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
            fit = {name: part for name, part in weights.items() if shapes.get(name, 0) == getattr(part, "shape", None)}
            fitting.append(fit)
            left_out += [name for name in weights if name not in fit]
            missing += [name for name in shapes if name not in fit]
        if not wrong and (left_out or missing):
            wrong = f"unfit weights {', '.join(left_out)}" if left_out else f"no weights for {', '.join(missing)}"
        expected = f"init_from: expected weights of {printable(policy)}'s network"
        if not fitting[0]:
            raise ValueError(f"{expected}, got no weights that fit")
        if strict and wrong:
            raise ValueError(f"{expected}, got {wrong[:200]}; init_strict=False takes the weights that fit")
        for (module, _), weights in zip(parts, fitting, strict=True):
            module.load_state_dict(weights, strict=False)
        return left_out

    def restore_checked(self, state: Mapping[str, Any], path: Path, expected: str) -> None:
        """Restores the weights of the checkpoint `path`. Raises ValueError if the weights belong to another network."""
        try:
            self.restore(state)
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{expected}, got {str(path)!r} ({' '.join(str(error).split())[:200]})") from None


def _copied(module: nn.Module | None) -> dict[str, torch.Tensor] | None:
    return None if module is None else {name: tensor.clone() for name, tensor in module.state_dict().items()}


def build_model(policy: AssignedPolicy, config: Config) -> PolicyModel:
    """Builds a policy's untrained model, which the seed determines; leaves torch's generators unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run_seed(config, "network", policy.index))  # unlike `torch.manual_seed`
        settings = config.learner_of(policy.name)
        norm = None if settings.obs_norm == "off" else Normalizer(policy.spaces)
        rewards = None if settings.reward_norm == "off" else RewardNormalizer()
        return PolicyModel(policy.algorithm.make_model(policy.spaces), norm, rewards)


@dataclass
class FiniteCheck:
    """Checks a policy's loss, weights and checkpoints; each method raises Diverged if a number is NaN or infinite.

    Buffers and trainer state that were infinite at the beginning, such as a mask of -inf, are exempt.
    """

    policy: str
    model: PolicyModel
    trainer: InitVar[Mapping[str, Any]]  # its state at the beginning
    checkpoint: Path
    saved: int | None  # the update count of the checkpoint in that file

    def __post_init__(self, trainer: Mapping[str, Any]) -> None:
        model = self.model
        self._has_members = members_kept(model)
        self._published: dict[str, torch.Tensor] = {}
        first = chain(model.whole.named_buffers(), model.named_buffers(), _tensors("trainer", trainer))
        self._exempt = {name for name, tensor in first if _is_float(tensor) and bool(torch.isinf(tensor).any())}

    def check_loss(self, loss: float, updates: int) -> None:
        if not math.isfinite(loss):
            self._refuse(f"the loss is {loss}", updates)

    def check_published(self, updates: int) -> None:
        """Checks the acting part's weights; lists its tensors again only if its submodules have changed."""
        model = self.model
        if not self._published or not self._has_members():
            self._has_members = members_kept(model)
            self._published = self._floats(chain(model.named_parameters(), model.named_buffers()))
        self._check(self._published, updates)

    def check_saved(self, trainer: Mapping[str, Any], updates: int) -> None:
        whole = self.model.whole
        named = chain(whole.named_parameters(), whole.named_buffers(), self.model.named_buffers())
        self._check(self._floats(named), updates)
        self._check(self._floats(_tensors("trainer", trainer)), updates)

    def _floats(self, named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in named if _is_float(tensor) and name not in self._exempt}

    @torch.no_grad()
    def _check(self, tensors: dict[str, torch.Tensor], updates: int) -> None:
        by_kind: dict[Any, list[torch.Tensor]] = {}
        for tensor in tensors.values():
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        if all(math.isfinite(_size(alike)) for alike in by_kind.values()):
            return
        for name, tensor in tensors.items():  # the norm of finite numbers may be infinite
            wrong = ~torch.isfinite(tensor)
            if wrong.any():
                self._refuse(f"{name} holds {tensor[wrong][0].item()}", updates)

    def _refuse(self, what: str, updates: int) -> None:
        kept = f"the checkpoint of update {self.saved} is kept, {str(self.checkpoint)!r}"
        raise Diverged(
            f"{self.policy}: expected finite numbers, but {what} at update {updates}; nothing more is published; "
            + ("there is no checkpoint yet" if self.saved is None else kept)
        )


@np.errstate(over="ignore", invalid="ignore")
def _size(alike: list[torch.Tensor]) -> Any:
    """Returns a norm of tensors with one device and dtype; it is finite only if all their numbers are.

    On the CPU, NumPy's products take a fifth of the time of torch's norms if tensors are small. On a GPU, a single call
    means a single wait.
    """
    if alike[0].dtype is torch.float32 and alike[0].is_cpu:
        arrays = [tensor.detach().numpy().ravel() for tensor in alike]
        return sum([float(array.dot(array)) for array in arrays])
    return torch.stack(torch._foreach_norm(alike)).sum()


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0


def _tensors(name: str, state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors and floats in a state of nested dicts and sequences, each with its dotted name."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, float):
        yield name, torch.tensor(state, dtype=torch.float64)
    elif isinstance(state, (Mapping, list, tuple)):
        for key, part in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _tensors(f"{name}.{key}", part)
