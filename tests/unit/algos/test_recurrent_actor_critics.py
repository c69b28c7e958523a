"""TD3, SAC and MATD3 with memory: an update against a plain program of the papers' equations, and what breaks it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import check_resumption, continuous_spaces, made_trainer, made_windows, team_spaces
from gymnasium import spaces as gym
from torch.nn import functional

import marlcore as mc
from marlcore.algos.bases import windows
from marlcore.algos.networks.recurrent import CriticTorso, RecurrentTorso, Windows
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


def scaled(action):
    """Actions of the Box from -2 to 3 on the scale [-1, 1]."""
    return 2 * (action.double() + 2) / 5 - 1


def linear(weights, name, x):
    return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def cell_step(weights, x, parts):
    """A step of torch's GRU or LSTM; returns the parts of the next state, of which the first is the output."""
    core = [tensor for name, tensor in weights.items() if "core.layer" in name]  # in the order that torch wants
    x, parts = x[None], [part[None] for part in parts]
    after = torch.lstm_cell(x, parts, *core) if len(parts) == 2 else torch.gru_cell(x, *parts, *core)[None]
    return [part[0] for part in after]


def windows_in(batch, hyper):
    """The windows of a batch: the observations and the last actions and rewards at each step and behind the last."""
    for row, held in enumerate(batch.valid[..., -1].sum(1).tolist()):
        joined = lambda obs, after: torch.cat([obs[row, :1], after[row, :held]]).double()  # noqa: B023, E731
        obs, state = (
            each(joined, batch.obs, batch.next_obs),
            {name: x[row].double() for name, x in batch.extras.items()},
        )
        last = torch.cat([state["previous_action"][None], scaled(batch.action[row, :held])])  # rows store it scaled
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
        self.temperature = 0.0 if self.delayed else self.hyper.temperature
        self.windows = list(windows_in(batch, self.hyper))
        self.rows = [(window, step) for window in self.windows for step in window.steps]
        self.ends = [(window, min(step + self.hyper.n_step, window.held)) for window, step in self.rows]
        self.taken = scaled(torch.stack([batch.action[window.row, step].flatten() for window, step in self.rows]))
        self.weight = torch.stack([batch.weight[window.row].double() for window, _ in self.rows])
        generator = torch.Generator()
        generator.set_state(trainer.generator.get_state())
        self.noise = [torch.randn(self.taken.shape, generator=generator).double() for _ in range(2)]

    def histories(self, weights, layers, window, obs, actions, parts):
        """One observation after the other. No gradient reaches into a burn-in (Kapturowski et al. 2019, section 3)."""
        for step, (x, action, reward) in enumerate(zip(obs, actions, window.rewards, strict=True)):
            if step == self.hyper.burn_in and not window.begins:
                parts = [part.detach() for part in parts]
            for layer in range(layers):
                x = linear(weights, f"torso.torso.dense.layers.{layer}", x).relu()
            h = reward.sign() * ((reward.abs() + 1).sqrt() - 1) + 1e-3 * reward  # Pohlen et al. 2018
            parts = cell_step(weights, torch.cat([x, action, h[None]]), parts)
            yield parts[0]

    def actions(self, weights, places, noise):
        """All members' actions [M, size] in [-1, 1] after these histories, and the log-densities [M]."""
        outputs = []
        for window in self.windows:
            of_members = [torch.stack([*self.histories(weights, 2, window, *seen)]) for seen in window.members]
            outputs.append(torch.cat([linear(weights, "output", seen) for seen in of_members], 1))
        output = torch.stack([outputs[window.row][step] for window, step in places])
        if self.delayed:
            return torch.tanh(output), 0.0
        mean, log_std = output.chunk(2, 1)
        std = log_std.clamp(-20, 2).exp()
        before = mean + std * noise
        normal = torch.distributions.Normal(mean, std).log_prob(before)
        return torch.tanh(before), (normal - torch.log(1 - torch.tanh(before) ** 2)).sum(1)

    def values(self, weights, places, action):
        """Both critics' values [2, M] of actions [M, size] after these histories; a dead member's action is 0."""
        memory = [[*self.histories(weights, 0, window, *window.joint)] for window in self.windows]
        alive = torch.stack([window.alive[step] for window, step in places])
        action = (action.unflatten(1, (alive.shape[1], -1)) * alive[..., None]).flatten(1)
        x = torch.cat([torch.stack([memory[window.row][step] for window, step in places]), action], 1).expand(2, -1, -1)
        for layer in range(3):
            x = x @ weights[f"layers.{layer}.weight"] + weights[f"layers.{layer}.bias"]
            x = x.relu() if layer < 2 else x
        return x[..., 0]

    def targets(self):
        hyper, target, noise = self.hyper, self.trainer.target, self.noise[0]
        policy, critics = (target.acting, target.critics) if self.delayed else (self.trainer.policy, target)
        action, log_prob = self.actions(tensors(policy), self.ends, noise)
        if self.delayed:
            clip = hyper.target_noise_clip
            action = (action + (hyper.target_noise * noise).clamp(-clip, clip)).clamp(-1, 1)
        targets = self.values(tensors(critics), self.ends, action).amin(0) - self.temperature * log_prob
        for number, ((window, step), (_, end)) in enumerate(zip(self.rows, self.ends, strict=True)):
            for at in reversed(range(step, end)):
                reward, discount = self.batch.reward[window.row, at], self.batch.discount[window.row, at]
                targets[number] = hyper.reward_scale * reward + discount * targets[number]
        return targets

    def critics_loss(self, weights, targets):
        """The loss, and the errors [2, M]."""
        errors = targets - self.values(weights, self.rows, self.taken)
        return (self.weight * errors**2).mean(1).sum(), errors.detach()

    def policy_loss(self, weights, critics):
        """In a team, each member climbs the value of its action beside those taken (Lowe et al. 2017, equation 6)."""
        action, log_prob = self.actions(weights, self.rows, self.noise[1])
        losses, size = [], action.shape[1]
        for own in torch.eye(size, dtype=torch.bool).split(size // len(self.windows[0].members)):
            values = self.values(critics, self.rows, torch.where(own.any(0), action, self.taken))
            losses.append(-values[0] if self.delayed else self.temperature * log_prob - values.amin(0))
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
    off[batch.mask.numpy()] = errors.abs().mean(0)
    priority = 0.8 * off.max(1) + 0.2 * off.sum(1) / batch.mask.sum(1).numpy()
    np.testing.assert_allclose(update.priority, priority, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"cell": "lstm"}, {"n_step": 1}, {"burn_in": 0}, {"n_step": 20}], ids=str)
@pytest.mark.parametrize("hyper", [TD3, SAC, MATD3], ids=lambda hyper: hyper.owner)
def test_an_update_is_that_of_a_plain_program(hyper, changes):
    """Losses, gradients and priorities of the critics and of the policy."""
    check_update(replace(hyper, **changes))


@pytest.mark.parametrize(
    "hyper", [TD3, SAC, mc.MADDPG(**SETTINGS, rewards="own", shared=False)], ids=lambda hyper: hyper.owner
)
def test_training_resumes(hyper):
    """Members of the team choose among unlike numbers of actions, by masks, and learn from rewards of their own."""
    spaces = team_spaces(masked=True) if hyper.wants_team else ALONE
    made = [made_windows(hyper, spaces, 4, seed).torch() for seed in range(4)]
    check_resumption(hyper, spaces, *made_trainer(hyper, spaces), made[:2], made[2:])


def burn_in_counted(*arguments, shortened=windows.shortened):
    short, window = shortened(*arguments)
    short.mask = short.valid[..., -1]
    return short, window


def in_one(self, core, inputs, state):
    return core(inputs.view(len(self.reward), -1, inputs.shape[-1]), state)


BROKEN = {
    "gradients reach into the burn-in": lambda trainer: (Windows, "unroll", in_one),
    "the burn-in counts": lambda trainer: (windows, "shortened", burn_in_counted),
    "critics begin with the policy's state": lambda trainer: (CriticTorso, "beginning", RecurrentTorso.beginning),
    "target critics have online histories": lambda trainer: (
        trainer.target.critics.encoder, "forward", trainer.critics.encoder.forward
    ),
    "the target policy has online histories": lambda trainer: (
        trainer.target.acting.torso, "forward", trainer.policy.torso.forward
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_the_plain_program_finds_a_broken_rule(rule, monkeypatch):
    with pytest.raises(AssertionError):
        check_update(TD3, lambda trainer: monkeypatch.setattr(*BROKEN[rule](trainer)))


@pytest.mark.parametrize("reach", [1.0, 100.0])
def test_the_last_action_is_seen_on_the_scale_of_its_bounds(reach):
    """A wide Box in its own units would saturate the layer; one without bounds stays as it is."""
    torso = RecurrentTorso(TD3, continuous_spaces(gym.Box(-3 * reach, reach, (2,), np.float32)), (4,))
    _, state = torso(torch.zeros(1, 3), None)
    seen = torso.acted(state, np.array([[-3 * reach, 0.0]], np.float32))["previous_action"]
    assert seen.tolist() == [[-1.0, 0.5]]
    free = RecurrentTorso(mc.RecurrentPPO(), continuous_spaces(gym.Box(-np.inf, np.inf, (2,), np.float32)), (4,))
    assert free.acted(state, np.array([[-300.0, 0.5]], np.float32))["previous_action"].tolist() == [[-300.0, 0.5]]


def test_members_actions_are_each_seen_on_the_scale_of_their_own_bounds():
    """As in training, where the windows' actions are encoded by each member's network."""
    reach = np.float32([[1.0], [4.0]])
    spaces = Spaces(
        gym.Dict({MEMBERS: gym.Box(-9, 9, (2, 3), np.float32), ALIVE: gym.MultiBinary(2)}), gym.Box(-reach, reach)
    )
    policy = replace(MATD3, shared=False).make_model(spaces).acting
    obs = {part.name: torch.ones(1, *part.field.shape) for part in spaces.parts}
    _, state = policy.stepped(obs, None)
    assert policy.acted(state, 0.5 * reach[None])["previous_action"].tolist() == [[[0.5], [0.5]]]
