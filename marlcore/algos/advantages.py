"""Advantages and value targets of a batch from a queue: GAE, and V-trace for transitions of older policies.

Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation" (arXiv:1506.02438);
Espeholt et al. 2018, "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures"
(arXiv:1802.01561).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..kernels.advantages import trace


class Steps(NamedTuple):
    """Rows of a batch, one after another, each [B].

    Attributes:
        reward, discount: float32, of one step each.
        value, following: float32, detached, of each observation and the next one.
        continues: bool, whether the next row is the episode's next transition.
    """

    reward: torch.Tensor
    discount: torch.Tensor
    value: torch.Tensor
    following: torch.Tensor
    continues: torch.Tensor


class Advantages(NamedTuple):
    """Both float32 [B], on the device of the values."""

    advantage: torch.Tensor
    target: torch.Tensor


def gae(steps: Steps, decay: float) -> Advantages:
    """The advantages of GAE with lambda `decay`, from 0 to 1; the targets are the values plus these."""
    return vtrace(steps, torch.ones_like(steps.reward), decay, 1.0, 1.0)


def vtrace(steps: Steps, ratio: torch.Tensor, decay: float, most_own: float, most_passed: float) -> Advantages:
    """V-trace's targets, and the advantages of its policy gradient.

    With decay 1 the advantage is the paper's rho (r + gamma v' - V), v' the next row's target; with ratios of 1 it is
    GAE's.

    Args:
        ratio: float32 [B], the probability of the action by today's policy, divided by that when it was taken.
        decay: lambda; the paper's is 1 (its remark 2 has others).
        most_own, most_passed: where ratios are clipped, the paper's rho-bar and c-bar.
    """
    arrays = [values.cpu().numpy() for values in (*steps, ratio)]
    advantage, target = np.empty_like(arrays[0]), np.empty_like(arrays[0])
    trace(*arrays, np.array([most_own, most_passed]), decay, advantage, target)
    device = steps.value.device
    return Advantages(torch.from_numpy(advantage).to(device), torch.from_numpy(target).to(device))
