"""Adam with a clipped gradient norm, against torch's."""

import copy
import subprocess
import sys

import pytest
import torch
from rounding import near, rounding

from marlcore.algos.bases.adam import ClippedAdam

MAX_NORM, RATE = 0.5, 0.01
NUMBERS = 32  # of the network
# torch's clipping divides by the norm plus 1e-6, and Adam by the root of squares that are scaled alike: a step changes
# by twice that share of the norm at most. No step is longer than ten times the rate.
CLIPPING = 2 * 1e-6 / MAX_NORM


def made_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))


def step(network, optimizer, inputs, clip_and_step):
    optimizer.zero_grad()
    network(inputs).square().sum().backward()
    return clip_and_step()


@pytest.mark.parametrize("scale", [0.01, 10.0], ids=["short gradients", "clipped ones"])
def test_steps_are_those_of_torch(scale):
    """Each of 20 steps begins in the same state, since differences between steps would add up to any amount."""
    ours, theirs = made_network(), made_network()
    adam = ClippedAdam(list(ours.parameters()), lr=RATE)
    peer = torch.optim.Adam(theirs.parameters(), lr=RATE)

    def clip_and_step_peer():
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), MAX_NORM)
        peer.step()
        return norm

    for _ in range(20):
        theirs.load_state_dict(ours.state_dict())
        peer.load_state_dict(copy.deepcopy(adam.state_dict()))
        inputs = scale * torch.randn(7, 3)
        norm = step(ours, adam, inputs, lambda: adam.clip_and_step(MAX_NORM))
        peer_norm = step(theirs, peer, inputs, clip_and_step_peer)
        assert norm.item() == near(peer_norm.item(), NUMBERS, 0.0)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            most = rounding(NUMBERS + 20, 10 * RATE)
            torch.testing.assert_close(one, other, rtol=most["rtol"], atol=most["atol"] + 10 * RATE * CLIPPING)


def test_the_state_of_torchs_adam_goes_on_bit_for_bit():
    network = made_network()
    adam = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    for _ in range(3):
        step(network, adam, torch.randn(7, 3), adam.step)
    twin = copy.deepcopy(network)
    resumed = ClippedAdam(list(twin.parameters()), lr=RATE)
    resumed.load_state_dict(copy.deepcopy(adam.state_dict()))
    inputs = torch.randn(7, 3)
    step(network, adam, inputs, adam.step)
    step(twin, resumed, inputs, lambda: resumed.clip_and_step(1e9))
    assert all(map(torch.equal, network.parameters(), twin.parameters()))


@pytest.mark.long
def test_it_does_not_import_torchs_compiler():
    """The import would take a second in each learner of a run."""
    program = """
import sys, torch
from marlcore.algos.bases.adam import ClippedAdam
adam = ClippedAdam([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
adam.clip_and_step(1.0)
adam.load_state_dict(adam.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
