"""cpprb's interface in one process: `train` with a prioritized buffer that holds each observation once.

    python examples/replay_cpprb.py [STEPS]

The model of apex_cpprb.py learns CartPole without further processes. A program that uses cpprb changes the import.
"""

from __future__ import annotations

import copy
import sys
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import torch
from apex_cpprb import ENV_DICT, Model, evaluate
from torch import nn

from marlcore.compat.cpprb import PrioritizedReplayBuffer, train


def main(steps: int = 10_000) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    np.random.seed(0)
    model = Model()
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    def get_action(obs: Any, step: int, episode: int, warming_up: bool) -> int:
        return model.get_action(obs, 1.0 if warming_up else max(0.05, 1 - 4 * step / steps))

    def update_policy(sample: dict[str, Any], step: int, episode: int) -> Any:
        error = model.td_error(sample, target)
        losses = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        optimizer.zero_grad()
        (torch.from_numpy(sample["weights"]) * losses).mean().backward()
        optimizer.step()
        if step % 200 == 0:
            target.load_state_dict(model.state_dict())
        return error.detach().abs().numpy()

    fields = {name: about for name, about in ENV_DICT.items() if name != "next_obs"}
    with closing(PrioritizedReplayBuffer(50_000, fields, next_of="obs")) as buffer:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        train(buffer, env, get_action, update_policy, max_steps=steps, n_warmups=500)
        mean = evaluate(model)
        print(f"{steps} steps, {buffer.get_stored_size()} transitions held, mean return {mean:.1f}")
    return mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
