"""Every algorithm with small networks, batches for it from a replay, windows or a queue, and plain functions."""

from types import SimpleNamespace

import numpy as np
import torch
from gymnasium import spaces as gym
from updates import box_spaces, continuous_spaces, made_batch
from windows import made_windows

import marlcore as mc
from marlcore.observations import ALONE
from marlcore.spaces import JOINT, Spaces

BOX = gym.Box(-9, 9, (3,), np.float32)
SHARED = Spaces(gym.Dict({ALONE: BOX, JOINT: gym.Box(-9, 9, (6,), np.float32)}), gym.Discrete(4))
QUEUED = {"hidden": (8, 8), "batch_size": 24, "minibatch_size": 8, "epochs": 2}
WINDOWS = {"hidden": (8, 8), "units": 6, "length": 12, "burn_in": 4, "period": 8, "n_step": 3}
SMALL = {  # every algorithm, with small networks, and spaces for it
    "dqn": (mc.DQN(hidden=(8, 8)), box_spaces()),
    "iqn": (mc.IQN(hidden=(8, 8), n_cos=4), box_spaces()),
    "r2d2": (mc.R2D2(**WINDOWS), box_spaces()),
    "td3": (mc.TD3(hidden=(8, 8)), continuous_spaces()),
    "sac": (mc.SAC(hidden=(8, 8)), continuous_spaces()),
    "ppo": (mc.PPO(**QUEUED), box_spaces()),
    "mappo": (mc.MAPPO(**QUEUED), SHARED),
    "recurrentppo": (mc.RecurrentPPO(**QUEUED, units=6, unroll=4), box_spaces()),
}
NUMBERS = {"learning_rate": 1e-3, "entropy_coefficient": 0.01}


def queue_batch(hyper, spaces, rows=24, seed=0, stale=0.0, **replaced):
    """A batch as a queue's reader gives it, and the model that acted: runs of a few rows, with random recurrent states.

    The rows' log-probabilities are those of a policy `stale` away.
    """
    rng = np.random.default_rng(seed)
    batch, model = made_batch(spaces, rows, seed), hyper.make_model(spaces)
    torch.nn.init.normal_(model.acting.head.weight)  # else the policy is uniform
    batch.reward /= 10
    batch.continues = torch.from_numpy(rng.random(rows) < 0.8)
    batch.continues[-1] = False
    batch.discount = torch.where(batch.continues | torch.from_numpy(rng.random(rows) < 0.5), 0.9, 0.0)
    state = {
        name: torch.from_numpy(rng.normal(size=(rows, *field.shape)).astype(np.float32))
        for name, field in hyper.transition(spaces).extras.items()
        if name not in ("log_prob", "drawn")
    }
    policy = model.acting
    output = policy(batch.obs, state)[0] if state else policy(batch.obs)
    action, log_prob, extras = policy.distribution.sample(output.detach(), spaces.mask_in(batch.obs), rng)
    log_prob += np.float32(stale) * rng.normal(size=rows).astype(np.float32)
    drawn = {name: torch.from_numpy(values) for name, values in {"log_prob": log_prob, **extras}.items()}
    fields = {"action": torch.from_numpy(action), "extras": {**drawn, **state}, "numbers": NUMBERS, **replaced}
    return SimpleNamespace(**{**vars(batch), **fields}), model


def batch_of(hyper, spaces, seed=0):
    """A batch as the algorithm's learner gets it."""
    if isinstance(hyper, mc.R2D2):
        return made_windows(hyper, spaces, 6, seed).torch()
    return queue_batch(hyper, spaces, seed=seed)[0] if isinstance(hyper, mc.PPO) else made_batch(spaces, seed=seed)


def huber(error, delta=1.0):
    return np.where(np.abs(error) <= delta, 0.5 * error**2, delta * (np.abs(error) - 0.5 * delta))


def plain_rescaled(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def plain_restored(x):
    return np.sign(x) * (((np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)
