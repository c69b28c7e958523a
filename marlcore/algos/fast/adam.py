"""Adam with a clipped gradient norm, in six torch calls whatever the number of tensors."""

from collections.abc import Sequence
from typing import Any

import torch


class ClippedAdam(torch.optim.Adam):
    """`torch.nn.utils.clip_grad_norm_` and `torch.optim.Adam.step` in one (Kingma & Ba 2015, arXiv:1412.6980).

    For small networks, the Python code of these two takes longer than the gradient itself. Here the gradients are views
    of one vector, which is zeroed, measured and scaled as a whole, and one fused kernel makes the step. The parameters
    are float32, all on one device; this object owns their `grad`. States are those of torch.optim.Adam. Without `lr`,
    the owner sets the learning rate before each step.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], lr: float | None, eps: float = 1e-8) -> None:
        super().__init__(parameters, lr=1.0 if lr is None else lr, eps=eps, fused=True)
        self._options = {"eps": eps} if lr is None else {"lr": lr, "eps": eps}
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
        self._remember_state()

    def _remember_state(self) -> None:
        states = [self.state[tensor] for tensor in self.tensors]
        self._means, self._squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        self._step: torch.Tensor = states[0]["step"].clone()  # of all tensors, so that one call advances it
        self._steps = [self._step] * len(states)

    def set_learning_rate(self, lr: float) -> None:
        for group in self.param_groups:
            group["lr"] = lr

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zeroes the gradients in place; they stay views of one vector."""
        self._gradient.zero_()

    @torch.no_grad()
    def clip_and_step(self, max_norm: float) -> torch.Tensor:
        """Scales a gradient longer than `max_norm` down to it and takes one step; returns the norm before, a scalar."""
        norm: torch.Tensor = torch.linalg.vector_norm(self._gradient)
        self._step += 1
        group = self.param_groups[0]
        torch._fused_adam_(
            self.tensors,
            self._gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=(norm / max_norm).clamp(min=1.0),  # the kernel divides gradients by this
        )
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The state, as a torch.optim.Adam with the same parameters has it; its tensors are live but for the steps."""
        for state in self.state.values():
            state["step"] = self._step.clone()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the moments and steps; the learning rate and eps stay those that this object was made with."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.update(self._options)
        self._remember_state()
