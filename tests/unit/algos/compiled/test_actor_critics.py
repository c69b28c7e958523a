"""SAC's and TD3's updates on chains equal those of the text."""

from typing import Any

import numpy as np
import pytest
from alike import check_updates_alike
from batches import continuous_spaces
from gymnasium import spaces as gym
from tiers import long_but

import marlcore as mc
from marlcore.algos.compiled import with_engine
from marlcore.algos.networks.torso import Torso
from marlcore.spaces import Spaces

BOX = gym.Box(np.array([-2, 0], np.float32), np.array([1, 3], np.float32))
NESTED = Spaces(gym.Dict({"x": gym.Box(-9, 9, (2, 3), np.float64), "room": gym.Discrete(4, start=1)}), BOX)
CASES: dict[str, tuple[Any, Spaces, int]] = {
    "sac": (mc.SAC(hidden=(8, 8)), continuous_spaces(), 6),
    "sac, tanh, of one layer": (mc.SAC(hidden=(17,), activation="tanh", target_entropy=-0.5), NESTED, 1),
    "sac, stacked, its rate scheduled": (
        mc.SAC(hidden=(33, 20, 5), temperature=2.0, learning_rate="linear(1e-3, 0, 100)", max_grad_norm=0.1),
        continuous_spaces(stack=3),
        64,
    ),
    "sac with deviations at their bounds": (mc.SAC(hidden=(8, 8)), NESTED, 9),
    "td3": (mc.TD3(hidden=(8, 8)), continuous_spaces(), 6),
    "td3 at every update": (mc.TD3(hidden=(17,), policy_delay=1, tau=1.0, activation="tanh"), NESTED, 1),
    "td3 with much noise": (mc.TD3(hidden=(40, 9), target_noise=2.0, max_grad_norm=0.1, tau=0.5), NESTED, 33),
}
QUICK = [(name, 12) for name in CASES]


@pytest.mark.parametrize("name, updates", long_but(QUICK, [*QUICK, *((name, 60) for name in [*CASES][::3])]))
def test_compiled_updates_equal_the_text(name: str, updates: int) -> None:
    hyper, spaces, rows = CASES[name]
    check_updates_alike(hyper, spaces, updates, wide=30 if "bounds" in name else 0, rows=rows)


@pytest.mark.parametrize("kind", [mc.SAC, mc.TD3])
def test_a_policy_that_sees_less_than_its_critics_is_left_to_torch(kind: Any) -> None:
    hyper = kind(hidden=(8, 8))
    model = hyper.make_model(NESTED)
    model.acting.torso = Torso(hyper, NESTED, hyper.hidden, without=("x",))
    trainer = hyper.make_trainer(model)
    assert with_engine(trainer, "auto") == (trainer, "a network with layers of other sizes")
