"""Times updates and acting by one tree of marlcore, or in plain torch: run by networks.py, in a process of its own.

It takes only what every version has, so that the tree on PYTHONPATH may be an older one.
"""

import copy
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import marlcore as mc
from marlcore.spaces import Spaces

BOX = gymnasium.spaces.Box
NUMBERS = {"learning_rate": 1e-3, "entropy_coefficient": 0.0}
SECONDS = 0.4  # of a row
CALLS = 4  # between two looks at the clock, which take 0.3 us
STEPS = 320  # minibatches of 64 in ten passes over 2,048 rows
# Algorithm, observation, action, units of a layer, rows, options
ROWS: dict[str, tuple[str, int, Any, int, int, dict[str, Any]]] = {
    "DQN update, 64 rows, 4-64-64-2": ("DQN", 4, 2, 64, 64, {}),
    "IQN update, 64 rows, 12-64-64-5": ("IQN", 12, 5, 64, 64, {}),
    "PPO step, 64 rows, two of 4-64-64": (
        "PPO", 4, 2, 64, 2048, {"minibatch_size": 64, "batch_size": 2048, "target_kl": None},
    ),
    "SAC update, 64 rows, 64 units": ("SAC", 17, None, 64, 64, {}),
    "SAC update, 256 rows, 256 units": ("SAC", 17, None, 256, 256, {}),
    "TD3 update, 64 rows, 64 units": ("TD3", 17, None, 64, 64, {}),
    "TD3 update, 256 rows, 256 units": ("TD3", 17, None, 256, 256, {}),
    "act, 16 rows, 4-64-64-2": ("DQN", 4, 2, 64, 16, {}),
}  # fmt: skip


def seconds_of(call: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]] = tuple) -> float:
    """CPU time of a call, the median of those within SECONDS; making its arguments is not timed."""
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 9:
        calls = [arguments() for _ in range(CALLS)]
        began = time.thread_time()
        for given in calls:
            call(*given)
        times.append((time.thread_time() - began) / CALLS)
    return median(times[len(times) // 5 :])


def made_batch(obs: int, space: Any, rows: int) -> SimpleNamespace:
    rng = np.random.default_rng(0)
    action = rng.integers(space.n, size=rows) if hasattr(space, "n") else rng.uniform(-1, 1, (rows, *space.shape))
    arrays = {
        "obs": rng.normal(size=(rows, obs)),
        "next_obs": rng.normal(size=(rows, obs)),
        "action": action,
        "reward": rng.normal(size=rows),
        "discount": np.where(rng.random(rows) < 0.05, 0.0, 0.99),
        "weight": np.ones(rows),
    }
    tensors = {k: torch.from_numpy(v if v.dtype == np.int64 else v.astype(np.float32)) for k, v in arrays.items()}
    continues = torch.from_numpy(np.arange(rows) % 128 != 127)
    extras = {"log_prob": torch.full((rows,), -0.69)}
    return SimpleNamespace(**tensors, extras=extras, continues=continues, numbers=NUMBERS)


def time_row(name: str, engine: str) -> float:
    kind, obs, actions, units, rows, options = ROWS[name]
    space = gymnasium.spaces.Discrete(actions) if actions else BOX(-1, 1, (6,), np.float32)
    spaces, batch = Spaces(BOX(-9, 9, (obs,), np.float32), space), made_batch(obs, space, rows)
    torch.manual_seed(0)
    if engine == "plain":
        return seconds_of(PLAIN[name.split()[0]](obs, actions or 6, units, batch))
    hyper = getattr(mc, kind)(hidden=(units, units), **options)
    model = hyper.make_model(spaces)
    if name.startswith("act"):
        return seconds_of(acting(hyper, model, spaces, batch.obs.numpy(), engine))
    trainer = hyper.make_trainer(model)
    if engine == "compiled":
        from marlcore.algos.compiled import with_engine
        from marlcore.algos.compiled.trainer import as_arrays

        trainer, _ = with_engine(trainer, "compiled")
        batch = as_arrays(batch)  # as a sampler gives them
    steps = STEPS if kind == "PPO" else 1
    return seconds_of(trainer.update, lambda: (copy.copy(batch),)) / steps


def acting(hyper: Any, model: Any, spaces: Spaces, obs: Any, engine: str) -> Callable[[], Any]:
    request = {"explore": {"epsilon": 0.1}, "mask": None, "generator": np.random.default_rng(0)}
    if engine != "compiled":
        return lambda: hyper.act(model, torch.from_numpy(obs), state=None, **request)
    from marlcore.algos.compiled.acting import acting_policy
    from marlcore.loops import PolicyModel

    published = PolicyModel(model)
    policy = acting_policy(hyper, published, spaces)
    policy.load({name: tensor.numpy() for name, tensor in published.state_dict().items()})
    return lambda: policy.act(obs, **request)


# ---- the same in plain torch, as CleanRL's single files write it ----


def mlp(inputs: int, units: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers = nn.Linear(inputs, units), activation(), nn.Linear(units, units), activation(), nn.Linear(units, outputs)
    return nn.Sequential(*layers)


class Dueling(nn.Module):
    def __init__(self, inputs: int, actions: int, units: int) -> None:
        super().__init__()
        self.common = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU())
        self.value, self.advantage = nn.Linear(units, 1), nn.Linear(units, actions)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features = self.common(obs)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor, network: nn.Module, most: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), most)
    optimizer.step()


@torch.no_grad()
def move(target: nn.Module, network: nn.Module, share: float) -> None:
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, share)


def plain_dqn(obs: int, actions: int, units: int, batch: Any) -> Callable[[], Any]:
    network = Dueling(obs, actions, units)
    target, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=2.5e-4)

    def update() -> None:
        with torch.no_grad():
            best = network(batch.next_obs).argmax(1, keepdim=True)
            goal = batch.reward + batch.discount * target(batch.next_obs).gather(1, best).squeeze(1)
        value = network(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        loss = (batch.weight * functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        step(optimizer, loss, network, 10.0)
        move(target, network, 0.02)

    return update


def plain_ppo(obs: int, actions: int, units: int, batch: Any) -> Callable[[], Any]:
    actor, critic = mlp(obs, units, actions, nn.Tanh), mlp(obs, units, 1, nn.Tanh)
    both = nn.ModuleList([actor, critic])
    optimizer = torch.optim.Adam(both.parameters(), lr=3e-4, eps=1e-5)
    rows = slice(0, 64)
    acted, advantage = batch.extras["log_prob"][rows], torch.randn(64)

    def update() -> None:
        chosen = torch.distributions.Categorical(logits=actor(batch.obs[rows]))
        moved = chosen.log_prob(batch.action[rows]) - acted
        ratio, given = moved.exp(), (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.max(-given * ratio, -given * ratio.clamp(0.8, 1.2)).mean()
        value = 0.5 * (critic(batch.obs[rows]).flatten() - batch.reward[rows]).square().mean()
        step(optimizer, policy + 0.5 * value - 0.0 * chosen.entropy().mean(), both, 0.5)

    return update


def plain_actor_critic(obs: int, actions: int, units: int, batch: Any, is_sac: bool) -> Callable[[], Any]:
    actor = mlp(obs, units, 2 * actions if is_sac else actions)
    critics = nn.ModuleList(mlp(obs + actions, units, 1) for _ in range(2))
    target, slow = copy.deepcopy(critics), copy.deepcopy(actor)
    of_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    of_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    log_alpha = torch.zeros(1, requires_grad=True)
    of_alpha = torch.optim.Adam([log_alpha], lr=1e-3)
    updates = 0

    def act(network: nn.Module, seen: torch.Tensor, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
        if not is_sac:
            action = network(seen).tanh()
            drawn = (noise * torch.randn_like(action)).clamp(-0.5, 0.5) if noise else 0.0
            return (action + drawn).clamp(-1, 1), torch.zeros(1)
        mean, log_std = network(seen).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        x = normal.rsample()
        action = x.tanh()
        return action, (normal.log_prob(x) - torch.log(1 - action.square() + 1e-6)).sum(1)

    def values(networks: Any, seen: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        x = torch.cat([seen, action], 1)
        return torch.stack([network(x).squeeze(1) for network in networks])

    def update() -> None:
        nonlocal updates
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            action, log_prob = act(actor if is_sac else slow, batch.next_obs, 0.2)
            future = values(target, batch.next_obs, action).amin(0) - alpha * log_prob
            goal = batch.reward + batch.discount * future
        step(of_critics, (values(critics, batch.obs, batch.action) - goal).square().mean(1).sum(), critics, 10.0)
        updates += 1
        if is_sac or updates % 2 == 0:
            action, log_prob = act(actor, batch.obs, 0.0)
            value = values(critics if is_sac else critics[:1], batch.obs, action).amin(0)
            step(of_actor, (alpha * log_prob - value).mean(), actor, 10.0)
            move(target, critics, 0.005)
        if is_sac:
            of_alpha.zero_grad()
            (-log_alpha.exp() * (log_prob.detach() - actions)).mean().backward()
            of_alpha.step()
        elif updates % 2 == 0:
            move(slow, actor, 0.005)

    return update


def plain_act(obs: int, actions: int, units: int, batch: Any) -> Callable[[], Any]:
    network = Dueling(obs, actions, units)
    return lambda: torch.no_grad()(network)(batch.obs).argmax(1).numpy()


PLAIN = {
    "DQN": plain_dqn, "PPO": plain_ppo, "SAC": partial(plain_actor_critic, is_sac=True),
    "TD3": partial(plain_actor_critic, is_sac=False), "act,": plain_act,
}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine = sys.argv[1]
    names = [name for name in ROWS if engine != "plain" or name.split()[0] in PLAIN]
    print(json.dumps({name: time_row(name, engine) for name in names}))
