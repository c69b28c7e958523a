"""What tests of algorithms share: each with small networks, batches as learners get them, plain functions."""

import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym

import marlcore as mc
from marlcore.interfaces import PREVIOUS_REWARD, Algorithm, ReplaySource
from marlcore.loops import ActingPolicy, PolicyModel, TorchNetwork
from marlcore.observations import ALONE, by_name, each, in_form, rows_at
from marlcore.spaces import ALIVE, JOINT, MASK, Spaces

GAMMA = 0.9  # of windows


def acting_policy(algorithm: Any, model: Any, spaces: Spaces, copies: int) -> ActingPolicy:
    """A greedy player of a network, on the CPU."""
    network = TorchNetwork(algorithm, PolicyModel(model), torch.device("cpu"))
    return ActingPolicy(network, spaces, copies, "repeat", np.random.default_rng(0))


def box_spaces(shape: tuple[int, ...] = (3,), actions: int = 2, dtype: Any = np.float32, **options: Any) -> Spaces:
    """An observation of one Box, with a Discrete of `actions`."""
    return Spaces(gym.Box(0, 100, shape, dtype), gym.Discrete(actions), **options)


def continuous_spaces(action: gym.Box | None = None, **options: Any) -> Spaces:
    """An observation of three numbers, with a Box of 2 x 3 components, no two of which have the same bounds."""
    low = np.array([[-1, 0, -5], [2, -0.5, -3]], np.float32)
    high = np.array([[1, 4, -1], [2.5, 0, 9]], np.float32)
    return Spaces(gym.Box(-10, 10, (3,), np.float32), action or gym.Box(low, high), **options)


def team_spaces(choices: tuple[int, ...] = (3, 2, 3), joint: int = 4, **options: Any) -> Spaces:
    """A team of two groups, of two members and of the rest, beside a joint observation; see envs/team.py."""
    groups = {
        f"members_{i}": gym.Box(-9, 9, shape, np.float32) for i, shape in enumerate([(2, 3), (len(choices) - 2, 1)])
    }
    team = gym.Dict({**groups, ALIVE: gym.MultiBinary(len(choices))})
    beside = {JOINT: gym.Box(-9, 9, (joint,), np.float32)}
    return Spaces(gym.Dict({ALONE: team, **beside}), gym.MultiDiscrete(choices), **options)


BOX = gym.Box(-9, 9, (3,), np.float32)
SHARED = Spaces(gym.Dict({ALONE: BOX, JOINT: gym.Box(-9, 9, (6,), np.float32)}), gym.Discrete(4))
QUEUED = {"hidden": (8, 8), "batch_size": 24, "minibatch_size": 8, "epochs": 2}
WINDOWS = {"hidden": (8, 8), "units": 6, "length": 12, "burn_in": 4, "period": 8, "n_step": 3}
SMALL = {  # every algorithm, with small networks, and spaces for it
    "dqn": (mc.DQN(hidden=(8, 8)), box_spaces()),
    "iqn": (mc.IQN(hidden=(8, 8), n_cos=4), box_spaces()),
    "r2d2": (mc.R2D2(**WINDOWS), box_spaces()),
    "cql": (mc.CQL(hidden=(8, 8)), box_spaces()),
    "bc": (mc.BC(hidden=(8, 8)), box_spaces()),
    "td3bc": (mc.TD3BC(hidden=(8, 8)), continuous_spaces()),
    "td3": (mc.TD3(hidden=(8, 8)), continuous_spaces()),
    "sac": (mc.SAC(hidden=(8, 8)), continuous_spaces()),
    "ppo": (mc.PPO(**QUEUED), box_spaces()),
    "mappo": (mc.MAPPO(**QUEUED), SHARED),
    "recurrentppo": (mc.RecurrentPPO(**QUEUED, units=6, unroll=4), box_spaces()),
    "vdn": (mc.VDN(hidden=(8, 8)), team_spaces()),
    "qmix": (mc.QMIX(hidden=(8, 8), mixing_units=4, hyper_units=6), team_spaces()),
    "matd3": (mc.MATD3(hidden=(8, 8)), team_spaces()),
    "maddpg": (mc.MADDPG(hidden=(8, 8)), team_spaces()),
    "happo": (mc.HAPPO(**QUEUED), team_spaces()),
    "coma": (mc.COMA(**QUEUED), team_spaces()),
}
NUMBERS = {"learning_rate": 1e-3, "entropy_coefficient": 0.01}


def made_obs(spaces: Spaces, rows: int, rng: np.random.Generator) -> Any:
    """Random observations in the form of a network's input; of each mask, and each team, 0.6 is set."""
    lead = (rows,) if spaces.stack == 1 else (rows, spaces.stack)
    obs = {}
    for name, field in by_name(spaces.obs).items():
        shape = (*lead, *field.shape)
        array = rng.random(shape) < 0.6 if name == MASK or name.endswith(ALIVE) else rng.normal(size=shape)
        obs[name] = torch.from_numpy(np.asarray(array)).to(getattr(torch, field.dtype))
    return in_form(obs, spaces.obs)


def made_action(spaces: Spaces, rows: int, rng: np.random.Generator) -> torch.Tensor:
    space = spaces.action
    if isinstance(space, gym.Box):
        return torch.from_numpy(rng.uniform(space.low, space.high, (rows, *space.shape)).astype(space.dtype))
    high = {gym.Discrete: "n", gym.MultiDiscrete: "nvec"}.get(type(space))
    limit = getattr(space, high) if high else 2
    return torch.from_numpy(rng.integers(limit, size=(rows, *space.shape)).astype(space.dtype))


def made_batch(spaces: Spaces | None = None, rows: int = 6, seed: int = 0, **replaced: Any) -> SimpleNamespace:
    """A batch of random transitions, as `Batch.torch` returns one."""
    spaces = spaces or box_spaces()
    rng = np.random.default_rng(seed)
    fields = {
        "obs": made_obs(spaces, rows, rng),
        "next_obs": made_obs(spaces, rows, rng),
        "action": made_action(spaces, rows, rng),
        "reward": torch.from_numpy(rng.normal(scale=10, size=rows).astype(np.float32)),
        "discount": torch.from_numpy(rng.choice([0.0, 0.9, 0.99], size=rows).astype(np.float32)),
        "weight": torch.from_numpy(rng.uniform(0.1, 1, size=rows).astype(np.float32)),
        "extras": {},
    }
    return SimpleNamespace(**{**fields, **replaced})


def made_trainer(hyper: Algorithm, spaces: Spaces | None = None) -> tuple[Any, Any]:
    """A model, and a trainer whose target, if it has one, differs from it."""
    model = hyper.make_model(spaces or box_spaces())
    trainer: Any = hyper.make_trainer(model)
    with torch.no_grad():
        for parameter in trainer.target.parameters() if hasattr(trainer, "target") else ():
            parameter.add_(torch.randn_like(parameter))
    return model, trainer


def acted(hyper: Algorithm, model: Any, obs: Any, mask: Any = None, seed: int = 0, **request: Any) -> mc.Action:
    """The actions of the algorithm's model or of its acting part; greedy unless asked to `explore`."""
    request = {"explore": None, "state": None, **request}
    return hyper.act(getattr(model, "acting", model), obs, mask=mask, generator=np.random.default_rng(seed), **request)


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Makes the tensors views of one flat tensor, as those of a published model are, and returns it."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    offset = 0
    for tensor in tensors:
        tensor.data = flat[offset : offset + tensor.numel()].view_as(tensor)
        offset += tensor.numel()
    return flat


def check_resumption(
    hyper: Algorithm, spaces: Spaces, model: Any, trainer: Any, before: Iterable[Any], after: Iterable[Any]
) -> None:
    """Asserts that a trainer resumed between these batches makes the updates of this one, which learns from all."""
    for batch in before:
        trainer.update(copy.copy(batch))
    saved = copy.deepcopy((model.state_dict(), trainer.state_dict()))
    other = hyper.make_model(spaces)
    resumed: Any = hyper.make_trainer(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for batch in after:
        first, second = (learner.update(copy.copy(batch)) for learner in (trainer, resumed))
        assert first.metrics == second.metrics
        assert first.priority is second.priority is None or torch.equal(first.priority, second.priority)
    for part, twin in ((model, other), *([(trainer.target, resumed.target)] if hasattr(trainer, "target") else [])):
        assert all(map(torch.equal, part.state_dict().values(), twin.state_dict().values()))


def made_windows(hyper: Algorithm, spaces: Spaces, rows: int = 24, seed: int = 0, **options: Any) -> mc.Batch:
    """Windows as a learner draws them: episodes that terminate, are truncated, or stop at a seam; random states."""
    rng = np.random.default_rng(seed)
    spec, source = hyper.transition(spaces), hyper.source(ReplaySource())
    with mc.ReplayBuffer.create(spec, 4_000, lanes=1) as replay:
        with replay.writer() as writer:
            for _ in range(25):
                _write_episode(writer, spec, spaces, rng)
        return replay.sampler(
            rows, sequence=source.sequence, stack=spaces.stack, gamma=GAMMA, seed=seed, min_size=1, **options
        ).sample()


def _write_episode(writer: Any, spec: mc.TransitionSpec, spaces: Spaces, rng: np.random.Generator) -> None:
    unstacked = Spaces(spaces.observation, spaces.action, spaces.masked)
    length, end = int(rng.integers(1, 40)), rng.choice(["terminated", "truncated", "seam"])
    made, action = made_obs(unstacked, length + 1, rng), made_action(unstacked, length, rng).numpy()
    extras = {name: rng.normal(size=(length, *one.shape)).astype(one.dtype) for name, one in spec.extras.items()}
    obs = [each(lambda part: part[row].numpy(), made) for row in range(length + 1)]  # noqa: B023
    for step, reward in enumerate(rng.normal(scale=3, size=length)):
        over = {end: True} if step == length - 1 and end != "seam" else {}
        final = obs[length] if "truncated" in over else None
        of_row = {name: values[step] for name, values in extras.items()}
        writer.add(obs[step], action[step], reward, final_obs=final, **over, **of_row)
    if end == "seam":
        writer.new_episode()


def queue_batch(hyper, spaces, rows=24, seed=0, stale=0.0, **replaced):
    """A batch as a queue's reader gives it, and the model that acted: runs of a few rows, with random recurrent states.

    The rows' log-probabilities are those of a policy `stale` away.
    """
    rng = np.random.default_rng(seed)
    batch, model = made_batch(spaces, rows, seed), hyper.make_model(spaces)
    for name, parameter in model.acting.named_parameters():
        if name.endswith("head.weight"):
            torch.nn.init.normal_(parameter)  # else the policy is uniform
    batch.reward /= 10
    batch.continues = torch.from_numpy(rng.random(rows) < 0.8)
    batch.continues[-1] = False
    batch.discount = torch.where(batch.continues | torch.from_numpy(rng.random(rows) < 0.5), 0.9, 0.0)
    state = {
        name: torch.from_numpy(rng.normal(size=(rows, *field.shape)).astype(np.float32))
        for name, field in hyper.transition(spaces).extras.items()
        if name not in ("log_prob", "drawn")
    }
    policy = model.acting
    mask = spaces.mask_in(batch.obs)
    if isinstance(hyper, mc.HAPPO):
        action, extras, *_ = hyper.act(policy, batch.obs, explore={}, state=None, mask=mask, generator=rng)
        log_prob = extras["log_prob"]
    else:
        output = policy(batch.obs, state)[0] if state else policy(batch.obs)
        action, log_prob, extras = policy.distribution.sample(output.detach(), mask, rng)
    log_prob += np.float32(stale) * rng.normal(size=rows).astype(np.float32)
    drawn = {name: torch.from_numpy(values) for name, values in {**extras, "log_prob": log_prob}.items()}
    fields = {"action": torch.from_numpy(action), "extras": {**drawn, **state}, "numbers": NUMBERS, **replaced}
    return SimpleNamespace(**{**vars(batch), **fields}), model


def batch_of(hyper, spaces, seed=0, rows=None):
    source = hyper.source(ReplaySource())
    if getattr(source, "sequence", None) is not None:
        return made_windows(hyper, spaces, rows or 6, seed).torch()
    if isinstance(source, mc.QueueSource) and not isinstance(hyper, mc.COMA):
        return queue_batch(hyper, spaces, rows or 24, seed)[0]
    batch = made_batch(spaces, rows or 6, seed)
    batch.continues = torch.arange(len(batch.reward)) % 3 < 2  # read by COMA alone
    return batch


def huber(error, delta=1.0):
    return np.where(np.abs(error) <= delta, 0.5 * error**2, delta * (np.abs(error) - 0.5 * delta))


def plain_advantages(reward, discount, value, following, continues, ratio, decay, rho_bar, c_bar):
    """The advantages and targets of rows: each target as the sum of V-trace's equation 1 over the rest of its run."""
    own, passed = np.minimum(ratio, rho_bar), decay * np.minimum(ratio, c_bar)
    errors, targets = own * (reward + discount * following - value), value.astype(float)
    for row in range(len(value)):
        weight = 1.0
        for later in range(row, len(value)):
            targets[row] += weight * errors[later]
            if not continues[later]:
                break
            weight *= discount[later] * passed[later]
    beyond = np.where(continues, np.append((targets - value)[1:], 0.0), 0.0)
    return own * (reward + discount * (following + decay * beyond) - value), targets


def plain_rescaled(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def plain_restored(x):
    return np.sign(x) * (((np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


@torch.no_grad()
def stepped_values(step_by, after, batch, held, *of_step):
    """The values [B, T + 1, *of_step] as an actor computes them, observation by observation.

    `step_by(obs, state)` gives the values and the next state, and `after(state, action)` what that is after the action.
    """
    values = np.zeros((len(held), held.shape[1] + 1, *of_step))
    for row, length in enumerate(held.sum(1)):
        state = rows_at(batch.extras, slice(row, row + 1))
        for step in range(length):
            at = (slice(row, row + 1), step)
            values[row, step], state = step_by(rows_at(batch.obs, at), state)
            state = after(state, batch.action[at])
            state[PREVIOUS_REWARD] = batch.reward[at]
        values[row, length], _ = step_by(rows_at(batch.next_obs, at), state)
    return values


def plain_returns(hyper, batch, held, later):
    """The n-step returns [B, T] within windows; `later(row, step)` is the value of the observation that ends one."""
    returns = np.zeros(held.shape)
    for row, length in enumerate(held.sum(1)):
        for step in range(length):
            total, discount, end = 0.0, 1.0, min(step + hyper.n_step, length)
            for at in range(step, end):
                total += discount * hyper.reward_scale * float(batch.reward[row, at])
                discount *= 0.0 if batch.terminated[row, at] else GAMMA
            returns[row, step] = total + discount * later(row, end)
    return returns


def check_window_update(update, batch, errors):
    """The Huber loss, and eta * max + (1 - eta) * mean with an eta of 0.8, over transitions after the burn-in."""
    mask = batch.mask.numpy()
    off = np.where(mask, np.abs(errors), 0)
    loss = (batch.weight.numpy()[:, None] * huber(off)).sum() / mask.sum()
    np.testing.assert_allclose(update.metrics["loss"], loss, rtol=1e-3, atol=1e-5)
    priority = 0.8 * off.max(1) + 0.2 * off.sum(1) / mask.sum(1)
    np.testing.assert_allclose(update.priority, priority, rtol=1e-3, atol=1e-4)
