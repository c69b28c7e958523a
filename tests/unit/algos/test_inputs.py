"""What reaches a network's fully connected layers, against a plain NumPy encoding, for each kind of observation."""

from itertools import product

import numpy as np
import pytest
import torch
from batches import box_spaces
from gymnasium import spaces as gym
from numpy.lib.stride_tricks import sliding_window_view
from rounding import rounding

from marlcore.algos import DQN
from marlcore.observations import each
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

ROWS = 5


def plain(space, value):
    """Returns one value of a space as numbers."""
    if isinstance(space, gym.Dict):
        return np.concatenate([plain(one, value[key]) for key, one in space.spaces.items()])
    if isinstance(space, gym.Tuple):
        return np.concatenate([plain(one, value[at]) for at, one in enumerate(space.spaces)])
    if isinstance(space, gym.Discrete):
        return np.eye(space.n)[value - space.start]
    if isinstance(space, gym.MultiDiscrete):
        return np.concatenate([np.eye(n)[one] for n, one in zip(space.nvec, value - space.start, strict=True)])
    return np.asarray(value, np.float64).ravel()


def inputs_of(spaces, samples, masks=None):
    """Returns a network's encoding of samples [B][stack] of the observation space."""
    torso = DQN(hidden=(8,)).make_model(spaces).torso  # without layers of its own, it returns the encoding
    frames = [spaces.values(sample, masks) for row in samples for sample in row]
    lead = (len(samples), spaces.stack) if spaces.stack > 1 else (len(samples),)
    return torso(each(lambda *parts: torch.from_numpy(np.stack(parts)).unflatten(0, lead), *frames))


def samples_of(space, stack):
    space.seed(0)
    return [[space.sample() for _ in range(stack)] for _ in range(ROWS)]


PARTS = gym.Dict(
    speed=gym.Box(-5, 5, (2,), np.float32),
    inside=gym.Dict(key=gym.Discrete(3, start=1), flags=gym.MultiBinary(2)),
    pair=gym.Tuple((gym.MultiDiscrete([2, 3]), gym.Box(0, 9, (2, 2), np.int64))),
)
SPACES = [
    gym.Box(-5, 5, (4,), np.float32),
    gym.Box(-5, 5, (2, 3), np.float64),
    gym.Box(0, 255, (5, 7, 7), np.uint8),
    gym.Box(-5, 5, (), np.float32),
    gym.Box(0, 1, (3,), np.bool_),
    gym.Discrete(5),
    gym.Discrete(5, start=-3),
    gym.MultiDiscrete([3, 1, 4]),
    gym.MultiDiscrete([3, 2], start=[-1, 7]),
    gym.MultiBinary(4),
    gym.MultiBinary((2, 3)),
    gym.Tuple((gym.Discrete(4),)),
    PARTS,
]


@pytest.mark.parametrize(("masked", "stack"), [(True, 1), (False, 3)])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_encoded_as_numbers(space, masked, stack):
    """Boxes and MultiBinaries as they are, Discretes and MultiDiscretes one-hot.

    The parts of a Dict or Tuple follow one another, each with all its frames; a mask is no input.
    """
    spaces = Spaces(space, gym.Discrete(2), masked=masked, stack=stack)
    samples = samples_of(space, stack)
    inputs = inputs_of(spaces, samples, np.array([True, False]) if masked else None)
    expected = [
        np.concatenate([plain(part.space, part.of(one)) for part in spaces.parts for one in row]) for row in samples
    ]
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-6)
    assert inputs.dtype == torch.float32
    if stack == 1:
        np.testing.assert_allclose(inputs.numpy(), [plain(space, row[0]) for row in samples], rtol=1e-6)


def convolved(x, layer, stride):
    """The valid cross-correlation of x [C, H, W] with a layer's kernels, then ReLU."""
    kernel, bias = layer.weight.detach().numpy().astype(np.float64), layer.bias.detach().numpy()
    windows = sliding_window_view(x, kernel.shape[-2:], (1, 2))[:, ::stride, ::stride]
    return np.maximum(np.einsum("chwij,ocij->ohw", windows, kernel) + bias[:, None, None], 0)


CHOSEN = {"image_side": 7, "channels": (4, 5), "kernels": (3, 2), "strides": (2, 1)}
IMAGES = [
    *product([(32, 40), (3, 36, 40), (36, 40, 3)], [np.uint8, np.float32], [1, 3], [{}]),
    ((7, 9, 3), np.uint8, 1, CHOSEN),
]


@pytest.mark.parametrize(("shape", "dtype", "stack", "options"), IMAGES)
def test_images_pass_two_convolutions(shape, dtype, stack, options):
    """Images pass two convolutions, uint8 divided by 255, a stack's frames as channels; smaller ones are flattened."""
    spaces, hyper = box_spaces(shape, dtype=dtype, stack=stack), DQN(hidden=(8,), **options)
    frames = np.random.default_rng(0).integers(0, 100, (2, stack, *shape)).astype(dtype)
    torso = hyper.make_model(spaces).torso
    found = torso(torch.from_numpy(frames if stack > 1 else frames[:, 0])).detach().numpy()
    frames = np.moveaxis(frames, -1, 2) if shape[-1] == 3 else frames
    scaled = frames / 255 if dtype == np.uint8 else frames
    terms = 64 * frames[0].shape[0] * 9 + 16 * 16  # of both kernels; no sum of a kernel's absolute weights reaches 4
    layers = [layer for layer in torso.modules() if isinstance(layer, torch.nn.Conv2d)]
    for row, image in zip(found, scaled.reshape(2, -1, *frames.shape[-2:]), strict=True):
        for layer, stride in zip(layers, hyper.strides, strict=True):
            image = convolved(image, layer, stride)
        np.testing.assert_allclose(row, image.ravel(), **rounding(terms, float(np.abs(scaled).max()) * 16))
    assert not options or DQN(hidden=(8,)).make_model(spaces).torso.size == 7 * 9 * 3


def test_kernels_that_do_not_fit_are_refused():
    says = "DQN kernels: expected sizes that fit an image of 7 x 9, got (8, 4) with strides (4, 2)"
    with pytest.raises(ValueError) as refused:
        DQN(image_side=7).make_model(box_spaces((7, 9)))
    assert str(refused.value) == says


def test_a_stack_has_at_least_one_frame():
    with pytest.raises(ValueError, match=r"^stack: expected an integer of at least 1, got 0$"):
        box_spaces(stack=0)
