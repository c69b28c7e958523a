"""The seed of torch's own generator in a worker."""

from contextlib import closing
from itertools import product

import torch

import marlcore as mc
from marlcore.processes import STEPS, Control
from marlcore.run.roles import settle_torch


def test_each_restart_and_each_resumed_run_has_a_seed_of_its_own() -> None:
    """A resumed run, and each agent of a node, counts attempts from 1 again, and steps from where they were."""
    config, seeds = mc.Config(learner=mc.LearnerConfig(threads=torch.get_num_threads())), []
    for about in ({}, {"epoch": 1}, {"epoch": 2}):
        with closing(Control.create(["actor-0"], **about)) as control, torch.random.fork_rng(devices=[]):
            for steps, attempt in product((0, 500), (1, 2)):
                control.workers["actor-0"].store(STEPS, steps)
                assert settle_torch(config, "actor-0", control, attempt)
                seeds.append(torch.initial_seed())
    assert len({*seeds}) == 12
