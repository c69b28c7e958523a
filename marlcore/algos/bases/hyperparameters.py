"""The base of all algorithms: it checks hyperparameters, and acts without computing gradients."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from ...declared import UNITS, Number, Scheduled, Whole, check_declared, layer_sizes
from ...field_docs import list_fields_in_doc
from ...interfaces import Action, Algorithm
from ...spaces import Spaces
from ..networks.custom import custom_function
from ..networks.initialization import Initialization
from ..networks.qnetwork import best
from ..networks.stand_in import faster
from ..networks.torso import Activation

Positive: TypeAlias = Annotated[float, Number(above=0)]
AtLeast0: TypeAlias = Annotated[float, Number(0)]
Share: TypeAlias = Annotated[float, Number(above=0, high=1)]
AtLeast1: TypeAlias = Annotated[int, Whole(1)]
Units: TypeAlias = Annotated[int, UNITS]
LearningRate: TypeAlias = Annotated[float | str, Scheduled(above=0)]
Layers: TypeAlias = Annotated[tuple[int, ...], layer_sizes]
Network: TypeAlias = Annotated[str | Callable[[Spaces], nn.Module] | None, custom_function]

RATE = "learning_rate"


class ActRequest(NamedTuple):
    """The arguments of `Algorithm.act` besides the model and the observations, for actors that explore."""

    explore: Mapping[str, Any]
    state: Mapping[str, torch.Tensor] | None
    mask: torch.Tensor | None
    generator: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(Algorithm):
    """Base of hyperparameters; it has those of the first layers. Fields declare their ranges (declared.py)."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        list_fields_in_doc(cls)

    network: Network = None
    """Your own network in place of the first layers or all layers: a function that gets the mc.Spaces and returns a
    torch.nn.Module from observations to features [B, n], or its module:function. See docs/guides/own-network.md."""
    activation: Activation = "relu"
    """Function after each fully connected layer."""
    layer_norm: bool = False
    """Normalize the outputs of each fully connected layer but the last, before the activation (Ba et al. 2016,
    arXiv:1607.06450)."""
    initialization: Initialization = "default"
    """First weights: torch's default, orthogonal (Saxe et al. 2014, arXiv:1312.6120) or xavier's uniform (Glorot &
    Bengio 2010). With the latter two, biases are zero."""
    channels: Layers = (16, 32)
    """Channels of each convolution of images; by default those of Mnih et al. 2013 (arXiv:1312.5602, section 4.1)."""
    kernels: Layers = (8, 4)
    """Rows and columns of each convolution's kernel."""
    strides: Layers = (4, 2)
    """Stride of each convolution."""
    image_side: AtLeast1 = 32
    """Least rows and columns of an image: smaller Boxes are flattened instead of convolved."""

    def __post_init__(self) -> None:
        check_declared(self, self.owner)
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            got = f"{self.channels}, {self.kernels} and {self.strides}"
            raise ValueError(f"{self.owner} channels: expected as many as kernels and strides, got {got}")

    @property
    def owner(self) -> str:
        """The algorithm's name, with which its error messages begin."""
        return type(self).__name__

    def act(self, model: nn.Module, obs: Any, **request: Any) -> Action:
        """Calls `chosen` if actors explore, otherwise `greedy`; see `Algorithm.act`."""
        with torch.inference_mode():
            if request["explore"] is not None:
                return self.chosen(model, obs, ActRequest(**request))
            action, state = self.greedy(model, obs, request["state"], request["mask"])
            return Action(action.numpy(force=True), state=state)

    def schedules(self) -> Mapping[str, Any]:
        """Returns the scheduled hyperparameters by name: here, the learning rate if it is a schedule."""
        rate = getattr(self, RATE)
        return {RATE: rate} if isinstance(rate, str) else {}

    @abstractmethod
    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Returns the actions for k observations, with exploration; implementations call `faster(model)`."""

    def greedy(self, model: Any, obs: Any, state: Any, mask: torch.Tensor | None) -> Any:
        """Returns a tensor of actions [k, ...] without exploration, and the next state or None.

        Runs only torch code, so that policies can be exported.
        """
        network = faster(model)
        if hasattr(model, "greedy"):
            return network.greedy(obs, mask), None
        if hasattr(model, "distribution"):  # of a module of the user's own
            return model.distribution.mode(network(obs), mask), None
        return model.actions.decoded(best(network(obs), model.actions.allowed(mask))), None
