"""TD3, SAC and MATD3 with memory: an update against a plain program of the papers' equations, and what breaks it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import continuous_spaces, made_trainer, made_windows
from gymnasium import spaces as gym

import marlcore as mc
from marlcore.algos.bases import windows
from marlcore.algos.networks.recurrent import CriticTorso, RecurrentTorso
from marlcore.observations import each
from marlcore.spaces import ALIVE, MEMBERS, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

ALONE = continuous_spaces(gym.Box(-2, 3, (2,), np.float32))
TEAM = Spaces(
    gym.Dict({MEMBERS: gym.Box(-9, 9, (3, 2), np.float32), ALIVE: gym.MultiBinary(3)}),
    gym.Box(-2, 3, (3, 2), np.float32),
)
MEMORY = {"cell": "gru", "hidden": (8, 5), "units": 6, "length": 12, "burn_in": 4, "period": 8, "n_step": 3}
SETTINGS = {**MEMORY, "eta": 0.8, "reward_scale": 0.5, "max_grad_norm": 1e9}
DELAYED = {**SETTINGS, "policy_delay": 1, "target_noise": 1.0, "target_noise_clip": 0.4}
TD3, SAC, MATD3 = mc.TD3(**DELAYED), mc.SAC(**SETTINGS), mc.MATD3(**DELAYED)
PREFIX = "members.networks.0."  # of members that share a network


def tensors(module, trained=False):
    """Returns a module's tensors by name, with more digits."""
    state = {name.removeprefix(PREFIX): one.detach().double() for name, one in module.state_dict().items()}
    return {name: one.requires_grad_(trained) for name, one in state.items()}


def linear(weights, name, x):
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def cell_step(weights, x, parts):
    """A step of a GRU (Cho et al. 2014), or of an LSTM (Hochreiter & Schmidhuber 1997), as torch's pages write them."""
    core = {name.rpartition(".")[2]: tensor for name, tensor in weights.items() if "core.layer" in name}
    new = core["weight_ih_l0"] @ x + core["bias_ih_l0"]
    old = core["weight_hh_l0"] @ parts[0] + core["bias_hh_l0"]
    if len(parts) == 1:
        (reset, update, candidate), (of_reset, of_update, of_candidate) = new.chunk(3), old.chunk(3)
        keep = torch.sigmoid(update + of_update)
        candidate = torch.tanh(candidate + torch.sigmoid(reset + of_reset) * of_candidate)
        return [(1 - keep) * candidate + keep * parts[0]]
    enter, forget, candidate, leave = (new + old).chunk(4)
    cell = torch.sigmoid(forget) * parts[1] + torch.sigmoid(enter) * torch.tanh(candidate)
    return [torch.sigmoid(leave) * torch.tanh(cell), cell]


def windows_in(batch, hyper):
    """The windows of a batch: the observations and the last actions and rewards at each step and behind the last."""
    for row, held in enumerate(batch.valid[..., -1].sum(1).tolist()):
        joined = lambda obs, after: torch.cat([obs[row, :1], after[row, :held]]).double()  # noqa: B023, E731
        obs, state = (
            each(joined, batch.obs, batch.next_obs),
            {name: x[row].double() for name, x in batch.extras.items()},
        )
        last = torch.cat([state["previous_action"][None], batch.action[row, :held].double()])
        parts = [state[name] for name in ("hidden", "cell")[: 1 + (hyper.cell == "lstm")]]
        if isinstance(obs, dict):
            code, alive = torch.eye(3).double().expand(held + 1, 3, 3), obs[ALIVE]
            own = torch.cat([code, obs[MEMBERS]], 2)
            members = [(own[:, m], last[:, m], [part[m] for part in parts]) for m in range(3)]
            obs = torch.cat([alive, obs[MEMBERS].flatten(1)], 1)
        else:
            members, alive = [(obs, last, parts)], torch.ones(held + 1, 1).double()
        yield SimpleNamespace(
            row=row, held=held, alive=alive, members=members, begins=bool(batch.mask[row, 0]),
            joint=(obs, last.flatten(1), [torch.zeros(6).double() for _ in parts]),  # critics begin with zeros
            rewards=torch.cat([state["previous_reward"][None], batch.reward[row, :held].double()]),
            steps=batch.mask[row].nonzero().flatten().tolist(),
        )  # fmt: skip


class Plain:
    """What one update should do: Fujimoto et al. 2018, Algorithm 1, or Haarnoja et al. 2018, on histories."""

    def __init__(self, trainer, batch, spaces):
        self.trainer, self.hyper, self.batch = trainer, trainer.hyper, batch
        self.delayed = not isinstance(self.hyper, mc.SAC)
        self.windows = list(windows_in(batch, self.hyper))
        self.rows = [(window, step) for window in self.windows for step in window.steps]
        generator = torch.Generator()
        generator.set_state(trainer.generator.get_state())
        shape = len(self.rows), int(np.prod(spaces.action.shape))
        self.first, self.second = (torch.randn(shape, generator=generator).double() for _ in range(2))

    def histories(self, weights, layers, window, obs, actions, parts):
        """One observation after the other. No gradient reaches into a burn-in (Kapturowski et al. 2019, section 3)."""
        found = []
        for step, (x, action, reward) in enumerate(zip(obs, actions, window.rewards, strict=True)):
            if step == self.hyper.burn_in and not window.begins:
                parts = [part.detach() for part in parts]
            for layer in range(layers):
                x = linear(weights, f"torso.torso.dense.layers.{layer}", x).relu()
            h = reward.sign() * ((reward.abs() + 1).sqrt() - 1) + 1e-3 * reward  # Pohlen et al. 2018
            parts = cell_step(weights, torch.cat([x, action, h[None]]), parts)
            found.append(parts[0])
        return torch.stack(found)

    def policy(self, weights):
        """All members' outputs [N, size] in each window."""
        of_members = [[self.histories(weights, 2, each, *seen) for seen in each.members] for each in self.windows]
        return [
            torch.cat([one @ weights["output.weight"].T + weights["output.bias"] for one in seen], 1)
            for seen in of_members
        ]

    def memory(self, weights):
        return [self.histories(weights, 0, window, *window.joint) for window in self.windows]

    def values(self, weights, memory, window, step, action):
        """Both critics' values; a dead member's action is 0."""
        action = (action.view(len(window.alive[step]), -1) * window.alive[step][:, None]).flatten()
        x = torch.cat([memory[window.row][step], action]).expand(2, 1, -1)
        for layer in range(3):
            x = x @ weights[f"layers.{layer}.weight"] + weights[f"layers.{layer}.bias"]
            x = x.relu() if layer < 2 else x
        return x.flatten()

    def chosen(self, output, noise):
        """An action in [-1, 1], and the logarithm of its density."""
        if self.delayed:
            return torch.tanh(output), 0.0
        mean, log_std = output.chunk(2)
        std = log_std.clamp(-20, 2).exp()
        before = mean + std * noise
        normal = torch.distributions.Normal(mean, std).log_prob(before)
        return torch.tanh(before), (normal - torch.log(1 - torch.tanh(before) ** 2)).sum()

    def taken(self, window, step):
        return (2 * (self.batch.action[window.row, step].double() + 2) / 5 - 1).flatten()

    def targets(self):
        hyper, target = self.hyper, self.trainer.target
        policy = self.policy(tensors(target.acting if self.delayed else self.trainer.policy))
        critics, targets = tensors(target.critics if self.delayed else target), []
        memory, temperature = self.memory(critics), 0.0 if self.delayed else hyper.temperature
        for (window, step), noise in zip(self.rows, self.first, strict=True):
            end, total, discount = min(step + hyper.n_step, window.held), 0.0, 1.0
            for at in range(step, end):
                total += discount * hyper.reward_scale * float(self.batch.reward[window.row, at])
                discount *= float(self.batch.discount[window.row, at])
            action, log_prob = self.chosen(policy[window.row][end], noise)
            if self.delayed:
                clip = hyper.target_noise_clip
                action = (action + (hyper.target_noise * noise).clamp(-clip, clip)).clamp(-1, 1)
            value = self.values(critics, memory, window, end, action).min()
            targets.append(total + discount * (value - temperature * log_prob))
        return torch.stack(targets).detach()

    def critics_loss(self, weights, targets):
        """The loss, and the rows' errors [M, 2]."""
        memory = self.memory(weights)
        values = [self.values(weights, memory, *row, self.taken(*row)) for row in self.rows]
        errors = targets[:, None] - torch.stack(values)
        weight = torch.stack([self.batch.weight[window.row].double() for window, _ in self.rows])
        return (weight[:, None] * errors**2).mean(0).sum(), errors.detach()

    def policy_loss(self, weights, critics):
        """Of a team, each member climbs the value of its action beside those taken (Lowe et al. 2017, equation 6)."""
        policy, memory, losses = self.policy(weights), self.memory(critics), []
        for row, noise in zip(self.rows, self.second, strict=True):
            action, log_prob = self.chosen(policy[row[0].row][row[1]], noise)
            for own in torch.arange(len(action)).chunk(len(row[0].members)):
                joint = self.taken(*row).index_put((own,), action[own])
                values = self.values(critics, memory, *row, joint)
                losses.append(-values[0] if self.delayed else self.hyper.temperature * log_prob - values.min())
        return torch.stack(losses).mean()


def assert_gradients(module, loss, weights):
    """Compares the gradients that an update left with those of the plain loss by these weights."""
    loss.backward()
    for name, parameter in module.named_parameters():
        expected = weights[name.removeprefix(PREFIX)].grad
        most = expected.abs().max().item()
        assert most > 0
        torch.testing.assert_close(parameter.grad.double(), expected, rtol=1e-3, atol=1e-3 * most, msg=name)


def check_update(hyper, broken=lambda trainer: None):
    spaces = TEAM if hyper.wants_team else ALONE
    _, trainer = made_trainer(hyper, spaces)
    batch = made_windows(hyper, spaces, 6).torch()
    batch.weight = torch.rand(6)
    assert batch.mask[:, 0].any() and batch.mask[:, 0].all() == (hyper.burn_in == 0)
    plain = Plain(trainer, batch, spaces)
    targets, policy, critics = plain.targets(), tensors(trainer.policy, True), tensors(trainer.critics, True)
    broken(trainer)

    update = trainer.update(batch)

    loss, errors = plain.critics_loss(critics, targets)
    assert update.metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert_gradients(trainer.critics, loss, critics)
    loss = plain.policy_loss(policy, tensors(trainer.critics))
    assert update.metrics["policy_loss"].item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    assert_gradients(trainer.policy, loss, policy)
    off = np.zeros(batch.mask.shape)
    off[batch.mask.numpy()] = errors.abs().mean(1)
    priority = 0.8 * off.max(1) + 0.2 * off.sum(1) / batch.mask.sum(1).numpy()
    np.testing.assert_allclose(update.priority, priority, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"cell": "lstm"}, {"n_step": 1}, {"burn_in": 0}, {"n_step": 20}], ids=str)
@pytest.mark.parametrize("hyper", [TD3, SAC, MATD3], ids=lambda hyper: hyper.owner)
def test_an_update_is_that_of_a_plain_program(hyper, changes):
    """Losses, gradients and priorities of the critics and of the policy."""
    check_update(replace(hyper, **changes))


def without_burn_in(trainer, patch):
    patch.setattr(windows, "shortened", lambda batch, burn_in, plain=windows.shortened: plain(batch, 0))


def with_burn_in_counted(trainer, patch):
    def counting(batch, burn_in, plain=windows.shortened):
        short, window = plain(batch, burn_in)
        short.mask = short.valid[..., -1]
        return short, window

    patch.setattr(windows, "shortened", counting)


def with_the_policys_state_in_critics(trainer, patch):
    patch.setattr(CriticTorso, "stepped", RecurrentTorso.stepped)


def with_online_histories_in_critics_targets(trainer, patch):
    getattr(trainer.target, "critics", trainer.target).encoder.stepped = trainer.critics.encoder.stepped


def with_online_histories_in_the_target_policy(trainer, patch):
    trainer.target.acting.torso.stepped = trainer.policy.torso.stepped


OF_SAC = [without_burn_in, with_burn_in_counted, with_the_policys_state_in_critics]
OF_SAC += [with_online_histories_in_critics_targets]
OF_TD3 = [*OF_SAC, with_online_histories_in_the_target_policy]


@pytest.mark.parametrize("hyper, broken", [*((SAC, rule) for rule in OF_SAC), *((TD3, rule) for rule in OF_TD3)])
def test_the_plain_program_finds_a_broken_rule(hyper, broken, monkeypatch):
    with pytest.raises(AssertionError):
        check_update(hyper, lambda trainer: broken(trainer, monkeypatch))
