"""Base classes of trainers: state for resuming, Adam with a learning rate that may be a schedule, target networks."""

import copy
from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from .adam import ClippedAdam, load_tensor
from .hyperparameters import RATE

N = TypeVar("N", bound=nn.Module)


class AdamTrainer:
    """Base of trainers, whose learning rate may be a schedule.

    `saved` names the attributes that are a trainer's state. Each of them has a state_dict, or is a list of such
    objects, a generator, a tensor or a number.
    """

    saved: ClassVar[tuple[str, ...]]
    epsilon: ClassVar[float] = 1e-8  # of Adam

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper
        self._is_scheduled = RATE in hyper.schedules()
        self.optimizers: list[ClippedAdam] = []

    def adam(self, parameters: Iterable[torch.Tensor]) -> ClippedAdam:
        """Makes an optimizer with the learning rate of `hyper`; `follow_schedules` sets a scheduled rate."""
        rate = None if self._is_scheduled else self.hyper.learning_rate
        self.optimizers.append(ClippedAdam(list(parameters), rate, self.epsilon))
        return self.optimizers[-1]

    def follow_schedules(self, batch: Any) -> None:
        """Sets the learning rate, if it is a schedule, to the rate in `batch.numbers`."""
        for optimizer in self.optimizers if self._is_scheduled else ():
            optimizer.set_learning_rate(batch.numbers[RATE])

    def descend(self, optimizer: ClippedAdam, loss: torch.Tensor) -> torch.Tensor:
        """Moves an optimizer's parameters one step down the loss; returns the gradient's norm before clipping."""
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        return optimizer.clip_and_step(self.hyper.max_grad_norm)

    def state_dict(self) -> dict[str, Any]:
        """Returns the trainer's own tensors, not copies, so save them before the next update."""
        return {name: _state_of(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.saved:
            part, value = getattr(self, name), state[name]
            if isinstance(part, list):
                for item, saved in zip(part, value, strict=True):
                    item.load_state_dict(saved)
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            elif isinstance(part, torch.Generator):
                part.set_state(value.cpu())  # generators of all devices take a CPU tensor
            elif isinstance(part, torch.Tensor):
                load_tensor(name, part, value)
            else:
                setattr(self, name, value)


def _state_of(part: Any) -> Any:
    if isinstance(part, list):
        return [item.state_dict() for item in part]
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, torch.Tensor) else part


class TargetTrainer(AdamTrainer):
    """Base of trainers with a target network: a slowly updated copy of the model's part `source`."""

    period = 1  # updates, of which the last may compute more than the others

    def __init__(self, hyper: Any, source: nn.Module) -> None:
        super().__init__(hyper)
        self.target: Any = independent_copy(source)
        self._source: list[torch.Tensor] = list(source.parameters())
        self._target: list[torch.Tensor] = list(self.target.parameters())
        self.device = self._source[0].device
        self.updates = 0

    @torch.no_grad()
    def soft_update(self, share: float) -> None:
        """Moves the target towards its source by this share of the difference; 1 copies exactly."""
        torch._foreach_lerp_(self._target, self._source, share)

    def bootstrapped(self, batch: Any, future: torch.Tensor) -> torch.Tensor:
        """Returns targets [..., B]: scaled rewards plus the discounted values [..., B] of the next observations."""
        return torch.add(batch.discount * future, batch.reward, alpha=self.hyper.reward_scale)

    def metrics(self, loss: torch.Tensor, q_taken: torch.Tensor, grad_norm: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns loss, grad_norm before clipping, and q_mean, the taken actions' mean value in units of the reward."""
        q_mean = q_taken.detach().sum() / (q_taken.numel() * self.hyper.reward_scale)
        return {"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}


def independent_copy(network: N) -> N:
    """Returns a copy without gradients, whose tensors share no memory with the network's."""
    with torch.no_grad():  # otherwise a TorchScript module's copies would depend on its parameters
        twin = copy.deepcopy(network)
    twin.requires_grad_(False)
    # A deep copy preserves shared storage, and a published network is views of one flat tensor.
    for tensor in chain(twin.parameters(), twin.buffers()):
        tensor.data = tensor.data.clone()
    return twin


def raw_reward(batch: Any) -> torch.Tensor:
    """Returns a batch's rewards before any normalization, as actors see them."""
    raw: torch.Tensor = getattr(batch, "raw_reward", batch.reward)
    return raw


def seeded_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """Returns a generator seeded by torch's own generator; its saved state lets training resume exactly."""
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
