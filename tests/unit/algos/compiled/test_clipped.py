"""Updates of PPO and MAPPO on chains equal those of the text."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from alike import check_updates_alike
from batches import NUMBERS, queue_batch
from gymnasium import spaces as gym
from tiers import long_but
from torch import nn
from torch.distributions import Normal

import marlcore as mc
from marlcore.algos.compiled import compiled_policy, with_engine
from marlcore.observations import ALONE
from marlcore.spaces import JOINT, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

WIDE = gym.Box(-10, 10, (3,), np.float32)
NAMED = gym.Dict({"place": gym.MultiDiscrete([3, 2]), "speed": gym.Box(-9, 9, (2, 2), np.float64)})
OF_TEAM = gym.Dict({ALONE: WIDE, JOINT: gym.Box(-9, 9, (17,), np.float32)})
BOX = gym.Box(np.array([-2, 0], np.float32), np.array([2, 9], np.float32))
ACTIONS = [gym.Discrete(4), gym.MultiDiscrete([3, 1, 18]), gym.MultiBinary((2, 3)), BOX]
OPTIONS: dict[str, list[Any]] = {
    "hidden": [(8,), (8, 8), (17, 33)],
    "activation": ["tanh", "relu"],
    "epochs": [1, 2, 3],
    "minibatch_size": [7, 16, 24],
    "clip": [0.05, 0.2],
    "clip_value": [None, 0.02],
    "value_coefficient": [0.5, 2.0],
    "max_grad_norm": [0.5, 100.0],
    "target_kl": [None, 0.01],
    "correction": ["vtrace", "gae"],
    "normalize_advantages": [True, False],
    "normalize_values": [True, False],
    "learning_rate": [1e-3, "linear(1e-3, 0, 100)"],
}
CASES = [(case, 6) for case in range(16)], [(case, 60) for case in range(16, 32, 3)]


def batch_for(hyper: mc.PPO, spaces: Spaces, seed: int, numbers: Any) -> SimpleNamespace:
    """A queue's batch. Masks allow the actions taken, and in some rows nothing, as in padding."""
    batch, _ = queue_batch(hyper, spaces, rows=24 - seed % 2, seed=seed, stale=0.3, numbers=numbers)
    if spaces.masked:
        masks, taken = spaces.mask_in(batch.obs), batch.action.reshape(len(batch.action), -1)
        masks[np.arange(len(taken))[:, None], taken + torch.from_numpy(spaces.mask_starts)] = True
        masks[:3] = False
        batch.extras["log_prob"].nan_to_num_(-1.0)  # drawn where a component had no allowed value
    return batch  # type: ignore[no-any-return]


@pytest.mark.parametrize("case, updates", long_but(CASES[0], CASES[0] + CASES[1]))
def test_compiled_updates_equal_the_text(case: int, updates: int) -> None:
    """Options and spaces are random, kinds of action take turns, and policies are far from uniform."""
    rng = np.random.default_rng(case)
    options = {name: values[rng.integers(len(values))] for name, values in OPTIONS.items()}
    action, observation = ACTIONS[case % len(ACTIONS)], [WIDE, NAMED, OF_TEAM][rng.integers(3)]
    masked = isinstance(action, (gym.Discrete, gym.MultiDiscrete)) and bool(rng.integers(2))
    hyper = (mc.MAPPO if observation is OF_TEAM else mc.PPO)(batch_size=24, **options)
    spaces = Spaces(observation, action, masked, stack=int(rng.integers(1, 3)))
    check_updates_alike(hyper, spaces, updates, partial(batch_for, hyper), wide=100)


@pytest.mark.parametrize("deviations", [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, 2)), torch.ones(2)])
def test_other_standard_deviations_are_left_to_torch(deviations: torch.Tensor) -> None:
    class Own(mc.PPO):
        def make_model(self, spaces: Spaces) -> Any:
            model = super().make_model(spaces)
            del model.acting.distribution.log_std
            model.acting.distribution.log_std = deviations
            return model

    hyper, spaces = Own(batch_size=24, minibatch_size=24), Spaces(WIDE, BOX)
    model = hyper.make_model(spaces)
    trainer = hyper.make_trainer(model)
    assert with_engine(trainer, "auto")[0] is trainer and compiled_policy(hyper, spaces, "auto") is None
    batch, _ = queue_batch(mc.PPO(batch_size=24, minibatch_size=24), spaces, rows=24)
    entropy = model.acting.distribution(torch.zeros(24, 2), None, batch)[1]
    torch.testing.assert_close(entropy, Normal(torch.zeros(2), torch.ones(2).exp()).entropy().sum().expand(24))


def test_a_number_that_is_not_finite_shows_in_the_loss() -> None:
    hyper, spaces = mc.PPO(batch_size=24, minibatch_size=24, epochs=1), Spaces(WIDE, ACTIONS[0])
    batch = batch_for(hyper, spaces, 0, NUMBERS)
    batch.reward[3] = np.nan
    update = with_engine(hyper.make_trainer(hyper.make_model(spaces)), "compiled")[0].update(batch)
    assert np.isnan(float(update.metrics["loss"])) and np.isnan(float(update.metrics["grad_norm"]))
