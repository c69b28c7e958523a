"""A rescaling of values that makes large returns learnable without clipping rewards.

Pohlen et al. 2018, "Observe and look further" (arXiv:1805.11593), proposition A.2.
"""

from __future__ import annotations

import torch

EPSILON = 1e-3  # of the linear part, which makes the inverse continuous


def rescaled(value: torch.Tensor) -> torch.Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + EPSILON * value


def restored(value: torch.Tensor) -> torch.Tensor:
    """The inverse of `rescaled`.

    The paper's form, (sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon), loses half of float32's digits in its
    difference; this form is equal to it and has none.
    """
    size = value.abs() + (1.0 + EPSILON)
    root = 2.0 * size / ((1.0 + 4.0 * EPSILON * size).sqrt() + 1.0)
    return value.sign() * (root.square() - 1.0)
