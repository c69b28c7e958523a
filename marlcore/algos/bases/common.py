"""The base of all algorithms: checked hyperparameters, actions without gradients, trainers that resume."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import nn

from ...declared import UNITS, By, Number, Scheduled, Sizes, Whole, check_declared
from ...interfaces import Action, Algorithm
from ...spaces import Spaces
from ..fast.adam import ClippedAdam, unrecorded
from ..networks.initialization import Initialization
from ..networks.own import own_function
from ..networks.torso import Activation

Positive: TypeAlias = Annotated[float, Number(above=0)]
AtLeast0: TypeAlias = Annotated[float, Number(0)]
Share: TypeAlias = Annotated[float, Number(above=0, high=1)]
AtLeast1: TypeAlias = Annotated[int, Whole(1)]
Units: TypeAlias = Annotated[int, UNITS]
LearningRate: TypeAlias = Annotated[float | str, Scheduled(above=0)]
Layers: TypeAlias = Annotated[tuple[int, ...], Sizes()]
Network: TypeAlias = Annotated[str | Callable[[Spaces], nn.Module] | None, By(own_function)]

RATE = "learning_rate"

N = TypeVar("N", bound=nn.Module)


class ActRequest(NamedTuple):
    """The arguments of `Algorithm.act` beside the model and the observations, where actors explore."""

    explore: Mapping[str, Any]
    state: Mapping[str, torch.Tensor] | None
    mask: torch.Tensor | None
    generator: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(Algorithm):
    """Base of dataclasses of hyperparameters, whose ranges their fields declare; see declared.py.

    Those here are of the first layers of networks.
    """

    network: Network = None
    """Your own network in place of the first layers, or of all: a function that gets the mc.Spaces and returns a
    torch.nn.Module from observations to features [B, n], or its module:function. See docs/guides/own-network.md."""
    activation: Activation = "relu"
    """After each fully connected layer."""
    layer_norm: bool = False
    """Normalize the outputs of each fully connected layer but the last, before the activation (Ba et al. 2016,
    arXiv:1607.06450)."""
    initialization: Initialization = "default"
    """Of weights: torch's default, orthogonal (Saxe et al. 2014, arXiv:1312.6120) or xavier's uniform (Glorot & Bengio
    2010); the latter two with biases of zero."""
    channels: Layers = (16, 32)
    """Of each convolution of images; the defaults are those of Mnih et al. 2013 (arXiv:1312.5602, section 4.1)."""
    kernels: Layers = (8, 4)
    """Rows and columns of each convolution's kernel."""
    strides: Layers = (4, 2)
    """Of each convolution."""
    image_side: AtLeast1 = 32
    """Least rows and columns of a Box that is convolved as an image; smaller ones are flattened."""

    def __post_init__(self) -> None:
        check_declared(self, self.owner)
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            got = f"{self.channels}, {self.kernels} and {self.strides}"
            raise ValueError(f"{self.owner} channels: expected as many as kernels and strides, got {got}")

    @property
    def owner(self) -> str:
        """The algorithm's name in messages."""
        return type(self).__name__

    def act(self, model: nn.Module, obs: Any, **request: Any) -> Action:
        """See `Algorithm.act`, `chosen` and `greedy`."""
        with torch.inference_mode():
            if request["explore"] is not None:
                return self.chosen(model, obs, ActRequest(**request))
            action, state = self.greedy(model, obs, request["state"], request["mask"])
            return Action(action.numpy(force=True), state=state)

    def schedules(self) -> Mapping[str, Any]:
        """The learning rate, if it is a schedule."""
        rate = getattr(self, RATE)
        return {RATE: rate} if isinstance(rate, str) else {}

    @abstractmethod
    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """The actions for k observations, with exploration. `faster(model)` runs the model."""

    @abstractmethod
    def greedy(self, model: Any, obs: Any, state: Any, mask: torch.Tensor | None) -> Any:
        """The actions [k, ...] without exploration, a tensor, and the next state or None; by torch alone."""


class Resumable:
    """A trainer whose state is that of its attributes `kept`: with a state_dict, a list of such, a generator,
    a tensor or a value."""

    kept: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Live tensors, so save before the next update."""
        return {name: _state_of(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.kept:
            part, saved = getattr(self, name), state[name]
            if isinstance(part, list):
                for one, its in zip(part, saved, strict=True):
                    one.load_state_dict(its)
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(saved)
            elif isinstance(part, torch.Generator):
                part.set_state(saved.cpu())  # generators of all devices take a CPU tensor
            elif isinstance(part, torch.Tensor):
                part.data.copy_(saved)
            else:
                setattr(self, name, saved)


def _state_of(part: Any) -> Any:
    if isinstance(part, list):
        return [one.state_dict() for one in part]
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, torch.Tensor) else part


class AdamTrainer(Resumable):
    """Base of trainers whose learning rate may be a schedule."""

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper
        self._optimizers: list[ClippedAdam] = []

    def adam(self, parameters: list[torch.Tensor]) -> ClippedAdam:
        """An optimizer with the learning rate of `hyper`, which `follow_schedules` sets if that is a schedule."""
        rate = self.hyper.learning_rate
        self._optimizers.append(ClippedAdam(parameters, lr=None if isinstance(rate, str) else rate))
        return self._optimizers[-1]

    def follow_schedules(self, batch: Any) -> None:
        """Sets the learning rate for a batch, whose `numbers` hold it if it is a schedule."""
        if isinstance(self.hyper.learning_rate, str):
            for optimizer in self._optimizers:
                optimizer.set_learning_rate(batch.numbers[RATE])


class TargetTrainer(AdamTrainer):
    """Base of trainers with a target: a slowly updated copy of the model's part `source`."""

    def __init__(self, hyper: Any, source: nn.Module) -> None:
        super().__init__(hyper)
        self.target: Any = independent_copy(source)
        self._source: list[torch.Tensor] = list(source.parameters())
        self._target: list[torch.Tensor] = list(self.target.parameters())
        self.device = self._source[0].device
        self.updates = 0

    @unrecorded
    def soft_update(self, share: float) -> None:
        """Moves the target by this share of the way to its source; 1 copies exactly."""
        torch._foreach_lerp_(self._target, self._source, share)

    def bootstrapped(self, batch: Any, future: torch.Tensor) -> torch.Tensor:
        """The targets [..., B]: the scaled rewards plus the discounted values [..., B] of the next observations."""
        return torch.add(batch.discount * future, batch.reward, alpha=self.hyper.reward_scale)

    def metrics(self, loss: torch.Tensor, taken: torch.Tensor, grad_norm: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss; q_mean, the mean value of the actions taken, in units of the reward; grad_norm, before clipping."""
        q_mean = taken.detach().sum() / (taken.numel() * self.hyper.reward_scale)
        return {"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}


def independent_copy(network: N) -> N:
    """A copy without gradients, whose tensors share no memory with the network's."""
    with torch.no_grad():  # else those of a TorchScript module would be results of its parameters
        twin = copy.deepcopy(network)
    twin.requires_grad_(False)
    # A deep copy preserves shared storage, and a published network is views of one flat tensor.
    for tensor in chain(twin.parameters(), twin.buffers()):
        tensor.data = tensor.data.clone()
    return twin


def raw_reward(batch: Any) -> torch.Tensor:
    """A batch's rewards before any normalization, as actors see them."""
    raw: torch.Tensor = getattr(batch, "raw_reward", batch.reward)
    return raw


def own_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator with which training resumes exactly from its state; torch.manual_seed determines the seed."""
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
