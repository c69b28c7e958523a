"""Every critic at the ends of episodes: a truncated one has a value beyond its end, a terminated one has none.

An episode of one to seven steps earns 1 or -1 at each, and observes nothing but which. So a truncated one is worth 5 or
-5 at any step, for gamma 0.8. The next one of its lane earns the other, so that its first observation would not do for
the final one. A terminated one is worth half, since three of four steps continue; a critic with memory, which counts
them, says little more.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batches import SMALL, team_spaces
from tiers import long_but

import marlcore as mc
from marlcore.algos.bases.clipped_policy import ClippedPolicy
from marlcore.interfaces import PREVIOUS_REWARD, QueueSource, ReplaySource
from marlcore.observations import by_name, each, in_form
from marlcore.spaces import ALIVE, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

GAMMA, LONGEST, LANES, SCALE = 0.8, 7, 16, 0.1
QUICK = {"learning_rate": 1e-2, "reward_scale": SCALE, "hidden": (8,)}
TARGET = {**QUICK, "learning_rate": 2e-2, "tau": 0.5}
OF_KIND: dict[type, dict[str, Any]] = {
    ClippedPolicy: {**QUICK, "gae_lambda": 0.0, "batch_size": 64, "minibatch_size": 64, "epochs": 4},
    mc.COMA: {**TARGET, "td_lambda": 0.0, "batch_size": 64, "minibatch_size": 64},
    mc.SAC: {**TARGET, "temperature": 1e-8},  # else the entropy counts too
    mc.CQL: {**TARGET, "alpha": 0.0},  # else values of other actions are pushed down
    mc.R2D2: {**TARGET, "length": 8, "burn_in": 2, "period": 6, "n_step": 1},
}


def made(name: str) -> tuple[Any, Spaces]:
    hyper, spaces = SMALL[name]
    options = next((options for kind, options in OF_KIND.items() if isinstance(hyper, kind)), TARGET)
    return replace(hyper, **options), team_spaces((2, 2, 2)) if hyper.wants_team else spaces


def observed(spaces: Spaces, sign: Any) -> Any:
    """Returns observations whose numbers are all `sign` [k], 1 or -1; all members of a team act."""
    parts = {
        name: np.stack([np.full(field.shape, 1 if ALIVE in name else each, field.dtype) for each in sign])
        for name, field in by_name(spaces.obs).items()
    }
    return in_form(parts, spaces.obs)


def tensors(obs: Any) -> Any:
    return each(lambda part: torch.from_numpy(part), obs)


class Episodes:
    """Steps of episodes, one after another in each lane, whose actions are the model's."""

    def __init__(self, hyper: Any, spaces: Spaces, model: Any, storage: Any, end: str) -> None:
        self.hyper, self.spaces, self.end = hyper, spaces, end
        self.acting, self.writer = getattr(model, "acting", model), storage.vector_writer()
        self.rng, self.sign = np.random.default_rng(0), np.resize(np.float32([1, -1]), LANES)
        self.left = self.rng.integers(1, LONGEST + 1, LANES)
        self.state = {name: field.zeros(LANES) for name, field in storage.spec.extras.items()}

    def step(self) -> None:
        obs, request = observed(self.spaces, self.sign), {"state": tensors(self.state), "mask": None}
        request |= {"explore": {"epsilon": 1.0, "noise": 0.5}, "generator": self.rng}
        chosen = self.hyper.act(self.acting, tensors(obs), **request)
        self.left -= 1
        over = self.left == 0
        self.writer.add(
            obs, chosen.action, self.sign, **{self.end: over}, final_obs=obs, **{**self.state, **chosen.extras}
        )
        if chosen.state is not None:
            after = {name: part.numpy() for name, part in chosen.state.items()} | {PREVIOUS_REWARD: self.sign}
            self.state = {name: (part.T * ~over).T for name, part in after.items()}
        self.sign = np.where(over, -self.sign, self.sign)
        self.left = np.where(over, self.rng.integers(1, LONGEST + 1, LANES), self.left)


def learned(name: str, end: str, changed: Any = lambda batch: batch) -> Any:
    """Returns the values of the two kinds of observation after updates on batches from a replay or a queue."""
    hyper, spaces = made(name)
    model = hyper.make_model(spaces)
    trainer, source, spec = hyper.make_trainer(model), hyper.source(ReplaySource()), hyper.transition(spaces)
    queued = isinstance(source, QueueSource)
    with (mc.TrajectoryQueue if queued else mc.ReplayBuffer).create(spec, 200 * LANES, LANES) as storage:
        episodes = Episodes(hyper, spaces, model, storage, end)
        if queued:
            read = storage.reader(source.batch_size, gamma=GAMMA).read
        else:
            read = storage.sampler(64, gamma=GAMMA, seed=0, sequence=source.sequence, min_size=1).sample
        for _ in range(2 if queued else 60):
            episodes.step()
        for _ in range(40 if queued and not hasattr(hyper, "cell") else 100):
            for _ in range(4 if queued else 0):
                episodes.step()
            batch = changed(read(timeout=5.0).torch())
            batch.numbers = {"learning_rate": hyper.learning_rate, "entropy_coefficient": 0.0}
            trainer.update(batch)
    obs = tensors(observed(spaces, np.float32([1, -1])))
    with torch.no_grad():
        return values_of(hyper, model, trainer, obs, batch.action[:2]) / SCALE


def values_of(hyper: Any, model: Any, trainer: Any, obs: Any, action: Any) -> Any:
    """Returns a model's values [2] of two first observations of episodes; all actions are worth the same."""
    if isinstance(hyper, ClippedPolicy):
        seen = model.acting(obs, None)[1] if isinstance(hyper, mc.RecurrentPPO) else obs
        return trainer.normalizer.denormalized(model.critic(seen)).view(2)
    if isinstance(hyper, mc.R2D2):
        return trainer.unscaled(model(obs, None)[0]).mean(1)
    if isinstance(hyper, mc.DQN | mc.CQL | mc.IQN):
        return model(obs).mean(1)
    if isinstance(hyper, mc.VDN | mc.QMIX):
        return model.mixed(model.acting(obs).mean(2), obs)
    taken = model.acting.actions.encode(action)
    if isinstance(hyper, mc.COMA):
        return trainer.taken(model.critics, obs, taken).mean(1)
    return model.critics(obs, taken)[0]


NAMES = sorted(SMALL.keys() - {"bc"})  # BC has no values


@pytest.mark.parametrize("name", long_but(["dqn", "ppo", "td3", "vdn"], NAMES))
def test_a_truncated_episode_is_worth_what_would_follow(name: str) -> None:
    assert learned(name, "truncated").tolist() == pytest.approx([5.0, -5.0], abs=0.5)


@pytest.mark.parametrize("name", long_but(["dqn", "ppo", "coma"], NAMES))
def test_a_terminated_episode_is_worth_what_it_earned(name: str) -> None:
    assert learned(name, "terminated").abs().tolist() == pytest.approx([2.5, 2.5], abs=1.0)


def ended(batch: Any) -> Any:
    """Changes a batch as if a truncated episode had no value beyond its end."""
    batch.discount = torch.where(batch.truncated, 0.0, batch.discount)
    return batch


def of_the_next_episode(batch: Any) -> Any:
    """Changes a batch as if the first observation of the next episode were the final one."""
    batch.next_obs = torch.where(batch.truncated[..., None], -batch.next_obs, batch.next_obs)
    return batch


@pytest.mark.parametrize("wrong", [ended, of_the_next_episode])
@pytest.mark.parametrize("name", long_but(["dqn", "ppo"], ["dqn", "ppo", "td3"]))
def test_a_wrong_bootstrap_is_found(name: str, wrong: Any) -> None:
    """Control: such values are too small."""
    assert (learned(name, "truncated", wrong).abs() < 4.0).all()
