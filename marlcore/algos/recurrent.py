"""The recurrent layer of a network: one step for actors, whole windows for learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

__all__ = ["KINDS", "Recurrent", "State", "parts_of"]

State = Mapping[str, torch.Tensor]  # a recurrent state's parts by name, each [k, ...]
KINDS = ("lstm", "gru")


class Recurrent(nn.Module):
    """Features [..., inputs] and a state to features [..., units] and the next state.

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
        self._tensors: Mapping[str, Any] = self.layer._parameters
        gates: Any = self.layer.bias_ih_l0
        with torch.no_grad():  # the second one keeps the state: an LSTM's forget gate, a GRU's update gate
            gates[units : 2 * units] += 1.0

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One step of k rows: [k, inputs] to [k, units]."""
        weights = [self._tensors[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        if len(self.parts) == 1:
            hidden = torch.gru_cell(x, state["hidden"], *weights)
            return hidden, {"hidden": hidden}
        hidden, cell = torch.lstm_cell(x, (state["hidden"], state["cell"]), *weights)
        return hidden, {"hidden": hidden, "cell": cell}

    def unroll(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The steps of windows one after another: [B, T, inputs] to [B, T, units].

        Args:
            x: the features; no window reaches across an episode's end.
            state: before the first step.
        """
        before = tuple(state[name][None] for name in self.parts)
        output, after = self.layer(x, before if len(before) > 1 else before[0])
        parts = after if len(before) > 1 else (after,)
        return output, {name: part[0] for name, part in zip(self.parts, parts, strict=True)}

    def unroll_burnt_in(self, x: torch.Tensor, state: State, burn_in: int, known: torch.Tensor) -> torch.Tensor:
        """The steps of a window of one episode, whose first ones only warm up a stored state: to [B, T, units].

        No gradient passes from later steps to the first `burn_in` (Kapturowski et al. 2019, section 3).

        Args:
            known: bool [B], the windows whose state needs no warming up, and whose gradients pass.
        """
        if not 0 < burn_in < x.shape[1]:
            return self.unroll(x, state)[0]
        first, warm = self.unroll(x[:, :burn_in], state)
        warm = {name: torch.where(known[:, None], part, part.detach()) for name, part in warm.items()}
        return torch.cat([first, self.unroll(x[:, burn_in:], warm)[0]], 1)


def parts_of(kind: Literal["lstm", "gru"]) -> tuple[str, ...]:
    """The names of the state's parts."""
    return ("hidden", "cell") if kind == "lstm" else ("hidden",)
