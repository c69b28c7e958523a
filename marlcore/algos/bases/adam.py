"""Adam with a clipped gradient norm, by six torch calls for any number of tensors."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

M = TypeVar("M")


def _plain(method: M) -> M:
    """Returns a method without its decorator, which would spend a second importing torch's compiler."""
    return getattr(method, "__wrapped__", method)


def load_tensor(name: str, tensor: torch.Tensor, saved: torch.Tensor) -> None:
    """Copies `saved` into `tensor`. Raises ValueError if the shapes differ, since fused kernels check no bounds."""
    if saved.shape != tensor.shape:
        raise ValueError(f"{name}: expected a tensor of shape {tuple(tensor.shape)}, got {tuple(saved.shape)}")
    tensor.data.copy_(saved)


class ClippedAdam(torch.optim.Adam):
    """Combines `torch.nn.utils.clip_grad_norm_` and `torch.optim.Adam.step` (Kingma & Ba 2015, arXiv:1412.6980).

    For small networks, the Python code of these two takes longer than the gradient itself. Here the gradients are views
    of one vector, which is zeroed, measured and scaled as a whole, and one fused kernel makes the step. The parameters
    are float32, all on one device; this object owns their `grad`. Its state_dict is that of torch.optim.Adam. Without
    `lr`, the owner sets the learning rate before each step.
    """

    add_param_group = _plain(torch.optim.Optimizer.add_param_group)

    def __init__(self, parameters: Sequence[torch.Tensor], lr: float | None, eps: float = 1e-8) -> None:
        super().__init__(parameters, lr=1.0 if lr is None else lr, eps=eps, fused=True)
        self._is_scheduled = lr is None
        self.tensors = list(parameters)
        sizes = [tensor.numel() for tensor in self.tensors]
        self._gradient = torch.zeros(sum(sizes), device=self.tensors[0].device)
        self._gradients = [
            part.view_as(tensor) for tensor, part in zip(self.tensors, torch.split(self._gradient, sizes), strict=True)
        ]
        for tensor, gradient in zip(self.tensors, self._gradients, strict=True):
            tensor.grad = gradient
            self.state[tensor] = {
                "step": torch.zeros((), device=tensor.device),
                "exp_avg": torch.zeros_like(tensor, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(tensor, requires_grad=False),
            }
        states = [self.state[tensor] for tensor in self.tensors]
        self._means, self._squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        self._step: torch.Tensor = states[0]["step"].clone()  # one count for all tensors, so that one call advances it
        self._steps = [self._step] * len(states)
        self._one = torch.ones_like(self._step)  # a plain number would become a new tensor in each operation
        self._rate: torch.Tensor | None = None  # the learning rate for CUDA graphs, which would keep a plain number

    def set_learning_rate(self, lr: float) -> None:
        if self._rate is not None and lr != self.param_groups[0]["lr"]:
            self._rate.fill_(lr)
        for group in self.param_groups:
            group["lr"] = lr

    def make_capturable(self) -> None:
        """Lets CUDA graphs capture `clip_and_step`: they then read the learning rate, as float32, at each replay."""
        self._rate = torch.full_like(self._step, self.param_groups[0]["lr"])

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zeroes the gradients in place; they stay views of one vector."""
        self._gradient.zero_()

    @torch.no_grad()
    def clip_and_step(self, max_norm: float) -> torch.Tensor:
        """Clips the gradient's norm to at most `max_norm` and makes one step; returns the norm before clipping."""
        norm: torch.Tensor = torch.linalg.vector_norm(self._gradient)
        self._step += self._one
        group = self.param_groups[0]
        torch._fused_adam_(
            self.tensors,
            self._gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            lr=group["lr"] if self._rate is None else self._rate,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=torch.maximum(norm / max_norm, self._one),  # the kernel divides gradients by this
        )
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in the form of torch.optim.Adam; only the step counts are copies."""
        for state in self.state.values():
            state["step"] = self._step.clone()
        return _plain(torch.optim.Optimizer.state_dict)(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads moments, step counts and a scheduled rate. Raises ValueError if the state is of other parameters."""
        saved = state_dict["state"]
        if len(saved) != len(self.tensors):
            raise ValueError(f"optimizer: expected the moments of {len(self.tensors)} tensors, got {len(saved)}")
        for number, tensor in enumerate(self.tensors):
            for name, part in {**self.state[tensor], "step": self._step}.items():
                load_tensor(name, part, saved[number][name])
        if self._is_scheduled:
            self.set_learning_rate(float(state_dict["param_groups"][0]["lr"]))
