"""The running mean and variance of observations, against NumPy over all rows together."""

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from rounding import rounding

from marlcore.spaces import MASK, Spaces
from marlcore.training.loops.normalizer import Normalizer


def test_batches_of_any_size_give_the_statistics_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal([3.0, -200.0], [0.01, 50.0], (1000, 2))
    norm = Normalizer(Spaces(Box(-1, 1, (2,), np.float64), Discrete(2)))
    for part in np.split(rows, [1, 7, 300]):
        norm.update(torch.from_numpy(part))
    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)
    far = float(np.abs(rows / rows.std(0)).max())  # in units of which the mean is subtracted
    torch.testing.assert_close(norm(torch.from_numpy(rows)), torch.from_numpy(expected).float(), **rounding(4, far))


def test_only_float_parts_are_normalized_and_stacks_count_as_rows() -> None:
    observation = Dict({"speed": Box(-1, 1, (2,)), "cell": Discrete(5), "frame": Box(0, 255, (40, 40), np.uint8)})
    norm = Normalizer(Spaces(observation, Discrete(3), masked=True, stack=2))
    speed = np.random.default_rng(1).normal(5.0, 2.0, (64, 2, 2)).astype(np.float32)
    obs = {
        "speed": torch.from_numpy(speed),
        "cell": torch.ones(64, 2, dtype=torch.int64),
        "frame": torch.ones(64, 2, 40, 40, dtype=torch.uint8),
        MASK: torch.ones(64, 2, 3, dtype=torch.bool),
    }
    norm.update(obs)
    seen = norm(obs)
    flat = speed.reshape(-1, 2).astype(np.float64)
    expected = (speed - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-8)
    far = float(np.abs(speed / speed.std()).max())
    torch.testing.assert_close(seen["speed"], torch.from_numpy(expected).float(), **rounding(4, far))
    assert all(seen[name] is obs[name] for name in ("cell", "frame", MASK))


def test_without_an_update_observations_stay_and_far_ones_are_clipped() -> None:
    norm = Normalizer(Spaces(Box(-1, 1, (1,)), Discrete(2)))
    some = torch.tensor([[4.0]])
    assert norm(some) is some
    norm.update(torch.tensor([[0.0], [1.0]]))
    assert norm(torch.tensor([[1e6], [-1e6]])).tolist() == [[10.0], [-10.0]]
