"""MATD3, MADDPG, HAPPO and COMA against plain computations: what critics see, whose gradients flow, who owes what."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import NUMBERS, flattened, made_batch, made_trainer
from gymnasium import spaces as gym

import marlcore as mc
from marlcore.spaces import ALIVE, JOINT, MASK, MEMBERS, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

COUNT, MOST = 3, 4
BOX = gym.Box(-1, 1, (COUNT, 2), np.float32)
SMALL = {"hidden": (8, 8), "reward_scale": 0.5}
COMA = mc.COMA(**SMALL, batch_size=24, minibatch_size=24, td_lambda=0.6, entropy_coefficient=0.0)
HAPPO = mc.HAPPO(hidden=(8, 8), batch_size=24, minibatch_size=24, epochs=1, target_kl=None)


def spaces_of(action=None, masked=False, joint=False):
    """A team of three: each observes two numbers, and chooses among four actions or moves in two directions."""
    parts = {MEMBERS: gym.Box(-9, 9, (COUNT, 2), np.float32), ALIVE: gym.MultiBinary(COUNT)}
    if joint:
        parts = {"observation": gym.Dict(parts), JOINT: gym.Box(-9, 9, (5,), np.float32)}
    return Spaces(gym.Dict(parts), action or gym.MultiDiscrete([MOST] * COUNT), masked=masked)


def batch_of(spaces, rows=24, dead=()):
    """Returns random transitions, in which the members `dead` do not act; masks allow all actions taken."""
    batch = made_batch(spaces, rows)
    (name,) = (part.name for part in spaces.parts if part.keys[-1] == ALIVE)
    for obs in (batch.obs, batch.next_obs):
        alive = torch.ones(rows, COUNT, dtype=torch.int8)
        alive[:, list(dead)] = 0
        obs[name] = alive
        if MASK in obs:
            obs[MASK].view(rows, COUNT, MOST)[:, :, 0] = True
    if MASK in batch.obs:
        batch.obs[MASK].view(rows, COUNT, MOST).scatter_(2, batch.action[..., None], True)
    batch.numbers = dict(NUMBERS)
    batch.continues = torch.ones(rows, dtype=torch.bool)
    batch.continues[[7, rows - 1]] = False
    return batch


@pytest.mark.parametrize("rewards", ["sum", "own"])
@pytest.mark.parametrize("kind", [mc.MATD3, mc.MADDPG])
@pytest.mark.parametrize("action", [None, BOX], ids=["discrete", "box"])
def test_critics_learn_from_what_all_members_would_do(kind, action, rewards, monkeypatch):
    """Compares critics with NumPy: of team rewards and of own ones, MATD3's pairs and MADDPG's single critics.

    Member 1 is dead, and member 2 dies in the first rows: then it has no later value of its own.
    """
    spaces, own = spaces_of(action, masked=action is None), rewards == "own"
    hyper = kind(**SMALL, target_noise=0.0, rewards=rewards)
    model, trainer = made_trainer(hyper, spaces)
    batch, rng = batch_of(spaces, dead=[1]), np.random.default_rng(0)
    batch.next_obs[ALIVE][:12, 2] = 0
    batch.extras = {"member_rewards": torch.from_numpy(rng.normal(size=(24, COUNT)).astype(np.float32))}
    future, actions = trainer.target.acting(batch.next_obs).detach(), model.acting.actions
    acted = actions.encode(batch.action)
    if action is None:  # the mode in place of a draw
        future = actions.encode(actions.decoded(future))
        assert batch.next_obs[MASK][future.bool()].all()
        monkeypatch.setattr(trainer.target.acting, "drawn", lambda *_: future)

    def values(critics, obs, action):
        joint = action.view(24, COUNT, -1) * obs[ALIVE][..., None]
        x = torch.cat([obs[ALIVE], obs[MEMBERS].flatten(1), joint.flatten(1)], 1).numpy()
        *inner, last = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in critics.layers]
        for weight, bias in inner:
            x = np.maximum(x @ weight + bias, 0)
        return (x @ last[0] + last[1]).reshape(hyper.critics, -1, 24)

    chosen, climbed = (each.detach() for each in trainer.policy_actions(batch))
    for member in range(COUNT):
        joint = torch.where(torch.arange(actions.size) // (actions.size // COUNT) == member, chosen, acted)
        expected = values(model.critics, batch.obs, joint)[0, member if own else 0]
        np.testing.assert_allclose(climbed[member], expected, atol=1e-5)
    reward, acts, lives = batch.reward.numpy(), 1.0, 1.0
    if own:
        arrays = batch.extras["member_rewards"], batch.obs[ALIVE], batch.next_obs[ALIVE]
        reward, acts, lives = (array.numpy().T for array in arrays)
    later = lives * batch.discount.numpy() * values(trainer.target.critics, batch.next_obs, future).min(0)
    error = (0.5 * reward + later - values(model.critics, batch.obs, acted)) * acts
    update = trainer.update(batch)
    loss = (batch.weight.numpy() * error**2).mean(2).sum()
    assert update.metrics["loss"].item() == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(update.priority, abs(error).mean((0, 1)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rewards", ["sum", "own"])
def test_each_members_gradient_is_of_its_own_action(rewards):
    """The other members' actions are those of the batch, so a member's new action changes only its own values."""
    spaces = spaces_of(BOX)
    model, trainer = made_trainer(mc.MATD3(**SMALL, shared=False, rewards=rewards), spaces)
    batch = batch_of(spaces)
    _, values = trainer.policy_actions(batch)
    for member in range(COUNT):
        parameters = list(model.acting.members.networks[member].parameters())
        for other in range(COUNT):
            gradients = torch.autograd.grad(values[other].sum(), parameters, allow_unused=True, retain_graph=True)
            assert any(g is not None and g.any() for g in gradients) == (other == member)


def test_drawn_actions_are_one_hot_and_follow_the_policy():
    """Frequencies are those of the softmax, a masked action is never drawn, and gradients pass."""
    spaces = spaces_of(masked=True)
    model, trainer = made_trainer(mc.MATD3(**SMALL), spaces)
    scores = torch.tensor([[0.0, 1.0, 2.0, -1e9] * COUNT]).repeat(20_000, 1).requires_grad_()
    drawn = model.acting.drawn(scores, trainer.generator)
    assert ((drawn == 0) | (drawn == 1)).all() and not drawn[:, 3].any()
    frequencies = drawn.detach().view(-1, MOST).mean(0)
    torch.testing.assert_close(frequencies, torch.softmax(scores[0, :MOST].detach(), 0), atol=0.02, rtol=0)
    drawn[:, 0].sum().backward()
    assert scores.grad[:, :3].any() and not scores.grad[:, MOST:].any()


@pytest.mark.parametrize("action", [None, BOX], ids=["discrete", "box"])
def test_rows_have_the_probability_of_all_living_members(action):
    """So the ratio of an unchanged policy is 1, whatever action a dead member has in its row."""
    spaces = spaces_of(action, masked=action is None, joint=True)
    hyper = HAPPO
    model, trainer = made_trainer(hyper, spaces)
    batch = batch_of(spaces, dead=[2])
    rng = np.random.default_rng(0)
    mask = batch.obs.get(MASK)
    chosen = hyper.act(model.acting, batch.obs, explore={}, state=None, mask=mask, generator=rng)
    extras = {name: torch.from_numpy(extra) for name, extra in chosen.extras.items()}
    rows = SimpleNamespace(obs=batch.obs, action=torch.from_numpy(chosen.action), extras=extras)
    judged = torch.stack([trainer.judged(member, rows)[0] for member in range(COUNT)], 1)
    torch.testing.assert_close(judged[:, :2].sum(1).detach(), rows.extras["log_prob"])


def test_later_members_advantages_carry_what_earlier_ones_changed(monkeypatch):
    """The ratios of earlier living members multiply the advantages (Kuba et al. 2022, equation 10)."""
    spaces = spaces_of(joint=True)
    _, trainer = made_trainer(HAPPO, spaces)
    batch = batch_of(spaces, dead=[1])
    batch.extras = {"log_prob": torch.zeros(24)}
    before = {member: trainer.judged(member, batch)[0].detach() for member in range(COUNT)}
    seen, passes = [], trainer._passes
    noted = lambda rows, step, kl: seen.append((step.args[0], rows)) or passes(rows, step, kl)  # noqa: E731
    monkeypatch.setattr(trainer, "_passes", noted)
    trainer.update(batch)
    (first, rows), *later = seen
    expected = rows.advantage.clone()
    for member, theirs in later:
        if first != 1:
            expected = expected * torch.exp(trainer.judged(first, batch)[0].detach() - before[first])
        torch.testing.assert_close(theirs.advantage, expected)
        first = member
    assert not torch.equal(later[-1][1].advantage, seen[0][1].advantage)


def test_the_dead_learn_nothing():
    spaces = spaces_of(joint=True)
    model, trainer = made_trainer(replace(HAPPO, entropy_coefficient=0.1), spaces)
    batch = batch_of(spaces, dead=[1])
    batch.extras = {"log_prob": torch.zeros(24)}
    networks = model.acting.members.networks
    before = [flattened(list(network.parameters())).clone() for network in networks]
    trainer.update(batch)
    after = [torch.cat([part.detach().flatten() for part in network.parameters()]) for network in networks]
    assert list(map(torch.equal, before, after)) == [False, True, False]


def test_a_team_of_one_learns_as_ppo_does():
    """HAPPO's policy step on a whole batch is PPO's where the critic shares no layer with the policy."""
    parts = {MEMBERS: gym.Box(-9, 9, (1, 2), np.float32), ALIVE: gym.MultiBinary(1)}
    spaces = Spaces(gym.Dict(parts), gym.MultiDiscrete([MOST]))
    plain = Spaces(gym.Box(-9, 9, (2,), np.float32), gym.Discrete(MOST))
    alike = {"hidden": (8, 8), "batch_size": 24, "minibatch_size": 24, "epochs": 1, "max_grad_norm": 1e9}
    model, trainer = made_trainer(mc.HAPPO(**alike), spaces)
    alone, of_ppo = made_trainer(mc.PPO(**alike), plain)
    alone.acting.load_state_dict(model.acting.members.networks[0].state_dict())
    batch = made_batch(spaces, 24)
    for obs in (batch.obs, batch.next_obs):
        obs[ALIVE] = torch.ones(24, 1, dtype=torch.int8)
    batch.numbers, batch.continues = dict(NUMBERS), torch.zeros(24, dtype=torch.bool)
    batch.discount = torch.zeros(24)
    batch.extras = {"log_prob": trainer.judged(0, batch)[0].detach()}
    with torch.no_grad():  # the same values, so that advantages are the same
        for part in (*model.critic.head.parameters(), *alone.critic.head.parameters()):
            part.zero_()
    own = {name: getattr(batch, name)[MEMBERS][:, 0] for name in ("obs", "next_obs")}
    single = SimpleNamespace(**{**vars(batch), **own, "action": batch.action[:, 0]})
    trainer.update(batch)
    of_ppo.update(single)
    for mine, theirs in zip(model.acting.members.networks[0].parameters(), alone.acting.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def made_coma(dead=()):
    """Returns a model whose choices are never random, its trainer, a batch, and the batch's actions, one-hot."""
    spaces = spaces_of(masked=True, joint=True)
    model, trainer = made_trainer(COMA, spaces)
    model.acting.drawn = lambda outputs, _: model.acting.actions.encode(model.acting.actions.decoded(outputs))
    batch = batch_of(spaces, dead=dead)
    return model, trainer, batch, model.acting.actions.encode(batch.action)


def test_values_of_a_members_actions_see_what_others_did_alone():
    model, _, batch, action = made_coma(dead=[1])
    values = model.critics(batch.obs, action)
    for member in range(COUNT):
        changed = action.view(24, COUNT, MOST).clone()
        changed[:, member] = changed[:, member].roll(1, -1)
        others = model.critics(batch.obs, changed.flatten(1))
        same = [torch.equal(*pair) for pair in zip(values.unbind(1), others.unbind(1), strict=True)]
        assert same == [member in (1, other) for other in range(COUNT)], "the dead do nothing"


def test_critics_learn_the_returns_of_td_lambda():
    """Computes returns backwards; where a run of rows is cut, the present policies' next actions give the value."""
    _, trainer, batch, action = made_coma()
    with torch.no_grad():
        taken = trainer.taken(trainer.target, batch.obs, action)
        after = trainer.policy.drawn(trainer.policy(batch.next_obs), None)
        cut = trainer.taken(trainer.target, batch.next_obs, after)
    expected = torch.zeros(25, COUNT)
    for row in reversed(range(24)):
        going = batch.continues[row]
        later = 0.4 * taken[row + 1] + 0.6 * expected[row + 1] if going else cut[row]
        expected[row] = 0.5 * batch.reward[row] + batch.discount[row] * later
    torch.testing.assert_close(trainer.targets(batch, action), expected[:-1])


def test_returns_do_not_depend_on_the_values_of_the_dead():
    """A member that dies in the middle of an episode learns the team's later rewards all the same."""
    _, trainer, batch, action = made_coma()
    for obs in (batch.obs, batch.next_obs):
        (name,) = (name for name in obs if name.endswith(ALIVE))
        obs[name][torch.arange(24) % 5 > 2, 1] = 0
    taken, told = trainer.taken, []
    for noise in (0.0, 100.0):

        def noisy(critics, obs, action, noise=noise):
            return taken(critics, obs, action) + noise * (1 - trainer.policy.team.alive(obs))

        trainer.taken = noisy
        told.append(trainer.targets(batch, action))
    assert torch.equal(*told)
    living = trainer.policy.team.alive(batch.obs)
    assert 0 < living[:, 1].sum() < 24


def test_the_dead_do_not_dilute_what_critics_learn():
    """The loss is the mean over the members that live."""
    _, trainer, batch, action = made_coma(dead=[1])
    living = [0, 2]
    with torch.no_grad():
        error = (trainer.taken(trainer.critics, batch.obs, action) - trainer.targets(batch, action))[:, living]
        value = trainer.taken(trainer.critics, batch.obs, action)[:, living].mean() / COMA.reward_scale
    trainer.hyper = replace(COMA, epochs=1)
    metrics = trainer.update(batch).metrics
    torch.testing.assert_close(metrics["loss"], 0.5 * error.square().mean())
    torch.testing.assert_close(metrics["q_mean"], value)


def test_policies_climb_what_their_actions_add():
    """An advantage is a value less the mean over the member's policy (Foerster et al. 2018, equation 4)."""
    model, trainer, batch, action = made_coma(dead=[1])
    values = model.critics(batch.obs, action).detach().numpy()
    outputs = model.acting(batch.obs).view(24, COUNT, MOST).detach().double().numpy()
    probability = np.exp(outputs - outputs.max(-1, keepdims=True))
    probability /= probability.sum(-1, keepdims=True)
    loss = 0.0
    for row in range(24):
        for member in (0, 2):
            did, p, q = int(batch.action[row, member]), probability[row, member], values[row, member]
            loss -= (q[did] - (p * q).sum()) * np.log(p[did]) / 48
    assert trainer._improve_policies(batch, action)["policy_loss"].item() == pytest.approx(loss, rel=1e-4, abs=1e-6)
