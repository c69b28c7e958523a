"""The head of a value network: features to a value for each action."""

from __future__ import annotations

import torch
from torch import nn

FEW = 64  # actions; for more, the product with a square matrix takes longer than a slice and a sum


class Head(nn.Module):
    """Features [..., inputs] to one value per action [..., actions], through a layer of `hidden` units.

    With `dueling`, that layer feeds the state's value and the actions' advantages, minus their mean (Wang et al. 2016,
    arXiv:1511.06581, equation 9). Both share the layer, so dueling costs little.
    """

    aggregate: torch.Tensor

    def __init__(self, inputs: int, hidden: int, actions: int, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.few = actions <= FEW
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, actions + dueling)
        # Applied to the advantages and the value: the value minus the mean advantage.
        rest = torch.cat([torch.full((actions, 1), -1 / actions), torch.ones(1, 1)])
        # For few actions one product adds the advantage too.
        whole = rest + torch.eye(actions + 1, actions) if self.few else rest
        self.register_buffer("aggregate", whole, persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.combined(self.output(torch.relu(self.hidden(features))))

    def combined(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values [..., actions], for the outputs of the last layer."""
        if not self.dueling:
            return outputs
        values = torch.matmul(outputs, self.aggregate)
        return values if self.few else outputs[..., :-1] + values
