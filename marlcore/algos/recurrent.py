"""The recurrent layer of a network: one step for actors, whole windows for learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from .network import Network, Operation, is_known

__all__ = ["KINDS", "Recurrent", "State", "parts_of", "unroll_burnt_in"]

State = Mapping[str, torch.Tensor]  # a recurrent state's parts by name, each [k, ...]
KINDS = ("lstm", "gru")
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")  # of one layer


class Recurrent(Network):
    """Features of one step [k, inputs], or of windows [k, T, inputs], and a state, to [..., units] and the next state.

    The state's parts, float32 [k, units], are `hidden` and, of an LSTM, `cell`; zeros where an episode begins. The bias
    of the gate that keeps the state begins at about 1, so that gradients reach far back (Jozefowicz et al. 2015, "An
    empirical exploration of recurrent network architectures").

    Args:
        kind: an LSTM (Hochreiter and Schmidhuber 1997) or a GRU (Cho et al. 2014, arXiv:1406.1078).

    Attributes:
        size: the units.
        parts: the names of the state's parts.
    """

    def __init__(self, kind: Literal["lstm", "gru"], inputs: int, units: int) -> None:
        super().__init__()
        self.size = units
        self.parts = parts_of(kind)
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, units, batch_first=True)
        gates: Any = self.layer.bias_ih_l0
        with torch.no_grad():  # the second one keeps the state: an LSTM's forget gate, a GRU's update gate
            gates[units : 2 * units] += 1.0

    def forward(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The features and the state after the last step; no window reaches across an episode's end."""
        before = tuple(state[name][None] for name in self.parts)
        windows = x if x.ndim == 3 else x[:, None]
        output, after = self.layer(windows, before if len(before) > 1 else before[0])
        parts = after if len(before) > 1 else (after,)
        found = {name: part[0] for name, part in zip(self.parts, parts, strict=True)}
        return output if x.ndim == 3 else output[:, 0], found

    def operations(self) -> list[Operation]:
        return [self._stepped if is_known(self.layer) and tuple(self.layer._parameters) == WEIGHTS else self.forward]

    def _stepped(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """What `forward` computes, but for rounding, one step in a fourth of its time."""
        if x.ndim == 3:
            return self.forward(x, state)
        tensors: Mapping[str, Any] = self.layer._parameters
        weights = [tensors[name] for name in WEIGHTS]
        if len(self.parts) == 1:
            hidden = torch.gru_cell(x, state["hidden"], *weights)
            return hidden, {"hidden": hidden}
        hidden, cell = torch.lstm_cell(x, (state["hidden"], state["cell"]), *weights)
        return hidden, {"hidden": hidden, "cell": cell}


def unroll_burnt_in(
    core: Operation, x: torch.Tensor, state: State, burn_in: int, known: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What a recurrent layer returns for windows of one episode, whose first steps only warm up a stored state.

    No gradient passes from later steps to the first `burn_in` (Kapturowski et al. 2019, section 3).

    Args:
        core: a Recurrent.
        x, state: its arguments, x [B, T, inputs].
        known: bool [B], the windows whose state needs no warming up, and whose gradients pass.
    """
    if not 0 < burn_in < x.shape[1]:
        return core(x, state)  # type: ignore[no-any-return]
    first, warm = core(x[:, :burn_in], state)
    warm = {name: torch.where(known[:, None], part, part.detach()) for name, part in warm.items()}
    later, after = core(x[:, burn_in:], warm)
    return torch.cat([first, later], 1), after


def parts_of(kind: Literal["lstm", "gru"]) -> tuple[str, ...]:
    """The names of the state's parts."""
    return ("hidden", "cell") if kind == "lstm" else ("hidden",)
