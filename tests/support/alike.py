"""Compiled updates beside those of the text, each from the same state."""

import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from batches import NUMBERS, made_batch, made_trainer

from marlcore.algos.compiled import COMPILED
from marlcore.compiled import use_level
from marlcore.interfaces import Algorithm
from marlcore.spaces import Spaces

LEVELS = ("baseline", "avx2", "avx512")
SHARE = 1e-4  # of the largest number beside it: a hundred roundings of a float32, and a hundredth of a wrong term


def check_updates_alike(
    hyper: Algorithm, spaces: Spaces, updates: int, batch_of: Any = made_batch, wide: float = 0, **batch: Any
) -> None:
    """Asserts that compiled updates at each level equal those of the text: metrics, priorities and the state after."""
    model, text = made_trainer(hyper, spaces)
    with torch.no_grad():
        last = [getattr(model.acting, name) for name in ("output", "head") if wide and hasattr(model.acting, name)]
        for parameter in chain.from_iterable(layer.parameters() for layer in last):
            parameter.mul_(wide)
    twin = copy.deepcopy(model)
    compiled = COMPILED[type(text)](hyper.make_trainer(twin))
    assert compiled.reason == ""
    for seed in range(updates):
        use_level(LEVELS[seed % len(LEVELS)])
        twin.load_state_dict(model.state_dict())
        compiled.load_state_dict(copy.deepcopy(text.state_dict()))
        given = batch_of(spaces, seed=seed, numbers=NUMBERS, **batch)
        expected, got = text.update(copy.copy(given)), compiled.update(copy.copy(given))
        assert got.metrics.keys() == expected.metrics.keys() and got.updates == expected.updates
        for name, value in expected.metrics.items():
            assert_near(name, got.metrics[name], value, 0.1)
        if expected.priority is not None:
            assert_near("priority", got.priority, expected.priority, 0.1)
        rate = NUMBERS["learning_rate"] if text._is_scheduled else hyper.learning_rate
        states = zip(tensors_of("", text.state_dict()), tensors_of("", compiled.state_dict()), strict=True)
        for (name, right), (same, tensor) in states:
            assert name == same
            assert_near(name, tensor, right)
        pairs = [(model, twin)] + ([(text.target, compiled.trainer.target)] if hasattr(text, "target") else [])
        for right, other in pairs:
            for (name, tensor), twin_tensor in zip(right.named_parameters(), other.parameters(), strict=True):
                moved = (twin_tensor - tensor).abs()
                # A gradient that is almost 0 has either sign by rounding, and Adam steps by its sign.
                assert moved.max() <= 2.1 * rate and moved.mean() <= 0.05 * rate, name
    use_level(LEVELS[-1])


def assert_near(name: str, got: Any, expected: Any, least: float = 1e-3) -> None:
    """`least`: the scale of numbers that may be sums of larger ones."""
    got, expected = (np.asarray(torch.as_tensor(value).detach(), np.float64) for value in (got, expected))
    scale = max(least, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=SHARE * scale, err_msg=name)


def tensors_of(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    """The numbers and moments in a trainer's state by name; not targets, which follow the weights."""
    if isinstance(state, (torch.Tensor, int, float)):
        yield name, state
    elif isinstance(state, (dict, list)):
        for key, part in state.items() if isinstance(state, dict) else enumerate(state):
            if key != "target":
                yield from tensors_of(f"{name}.{key}", part)
