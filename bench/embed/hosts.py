"""What both sides of a codebase give and cost: `python -m bench.embed.hosts NAME SOURCES compare`, in its environment.

`theirs` or `ours` instead of `compare` is a whole run with the sources as they are, or with our edits.
"""

import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..processes import in_turns
from .edits import Edited
from .patches import PATCHES, Patch
from .plays import pfrl_buffer, play

GAMMA, ROWS, TIMED, CAPACITY, ROUNDS = 0.99, 2_400, 400, 3_000, 7
Call = Callable[[], Any]


class Row(NamedTuple):
    obs: NDArray[Any]
    action: int
    reward: float
    next_obs: NDArray[Any]
    terminated: bool
    truncated: bool


class Side(NamedTuple):
    """One side's buffer: makes the call that adds a row, draws a batch, and says what it has, rows by their names."""

    add: Callable[[Row], Call]
    sample: Call
    rows: Callable[[Any], tuple[Any, ...]]  # obs, action, reward, next_obs, discount


def stream(steps: int, frames: bool = False) -> list[Row]:
    """Episodes of 3 to 20 steps, half of them truncated, without two observations alike; frames come in stacks of 4."""
    rng, rows = np.random.default_rng(0), []

    def new() -> NDArray[Any]:
        return rng.integers(0, 256, (84, 84), np.uint8) if frames else rng.normal(size=4).astype(np.float32)

    while len(rows) < steps:
        stack, length, terminated = deque([new()] * 4, 4), int(rng.integers(3, 21)), bool(rng.integers(2))
        obs = np.stack(stack) if frames else stack[-1]
        for t in range(length):
            stack.append(new())
            following = np.stack(stack) if frames else stack[-1]
            reward, ends = float(np.float32(rng.normal())), t == length - 1
            rows.append(Row(obs, t % 2, reward, following, ends and terminated, ends and not terminated))
            obs = following
    return rows


def expected(rows: list[Row], n: int) -> dict[bytes, tuple[Any, ...]]:
    """Computes from the definitions, for each observation: action, n-step return, next observation and discount."""
    found = {}
    for t, row in enumerate(rows):
        total = 0.0
        for k, last in enumerate(rows[t : t + n]):
            total += GAMMA**k * last.reward
            if last.terminated or last.truncated or k == n - 1:
                discount = 0.0 if last.terminated else GAMMA ** (k + 1)
                found[row.obs.tobytes()] = row.action, total, last.next_obs, discount
                break
    return found


def judge(side: Side, right: dict[bytes, tuple[Any, ...]]) -> dict[str, int]:
    """Counts the rows drawn in many batches, and those whose value differs from the definition."""
    drawn, wrong, count = set(), set(), 0
    while count < 20 * len(right):
        columns = [np.asarray(column) for column in side.rows(side.sample())]
        count += len(columns[0])
        for obs, action, reward, next_obs, discount in zip(*columns, strict=True):
            drawn.add(key := obs.tobytes())
            due = right.get(key)
            same = due and np.allclose((action, reward, discount), (due[0], due[1], due[3]), atol=1e-5)
            if not same or (due[3] and not np.array_equal(next_obs, due[2])):
                wrong.add(key)
    return {"of": len(right), "drawn": len(drawn), "wrong": len(wrong)}


# ---- the buffers of each codebase, which both sides make and call alike ----


def rainbow(module: Any, ours: bool) -> Side:
    buffer = module.PrioritizedReplayBuffer(CAPACITY, (4, 84, 84), "cpu", 3, GAMMA)

    def add(row: Row) -> Call:
        ends = [np.array([row.terminated]), np.array([row.truncated])][: 1 + ours]
        step = row.obs[None], np.array([row.action]), np.array([row.reward]), row.next_obs[None]
        return partial(buffer.add, *step, *ends)

    def rows(batch: Any) -> tuple[Any, ...]:
        discounts = batch.discounts if ours else GAMMA**3 * (1 - batch.dones.float())
        action, reward, discount = (column.squeeze(1) for column in (batch.actions, batch.rewards, discounts))
        return batch.observations, action, reward, batch.next_observations, discount

    return Side(add, lambda: buffer.sample(32), rows)


def uniform(module: Any, ours: bool) -> Side:
    from gymnasium.spaces import Box, Discrete

    buffer = module.ReplayBuffer(CAPACITY, Box(-9, 9, (4,)), Discrete(2), "cpu", handle_timeout_termination=False)

    def add(row: Row) -> Call:
        last = np.array([row.truncated]) if ours else [{}]
        flags = np.array([row.reward]), np.array([row.terminated]), last
        return partial(buffer.add, row.obs[None], row.next_obs[None], np.array([row.action]), *flags)

    def rows(batch: Any) -> tuple[Any, ...]:
        action, discount = batch.actions.reshape(-1), GAMMA * (1 - batch.dones.reshape(-1))
        return batch.observations, action, batch.rewards.reshape(-1), batch.next_observations, discount

    return Side(add, lambda: buffer.sample(256), rows)


def tianshou(module: Any, ours: bool) -> Side:
    from tianshou.data import Batch

    buffer = module.VectorReplayBuffer(CAPACITY, 1)

    def add(row: Row) -> Call:
        parts = {"obs": row.obs, "act": row.action, "rew": row.reward, "obs_next": row.next_obs}
        parts |= {"terminated": row.terminated, "truncated": row.truncated, "done": row.terminated or row.truncated}
        batch = Batch(**{name: np.asarray(part)[None] for name, part in parts.items()}, info=Batch())
        return partial(buffer.add, batch, [0])

    def rows(drawn: Any) -> tuple[Any, ...]:
        batch, _ = drawn
        return batch.obs, batch.act, batch.rew, batch.obs_next, GAMMA * (1 - batch.terminated)

    return Side(add, lambda: buffer.sample(256), rows)


def lerobot(module: Any, ours: bool) -> Side:
    buffer = module.ReplayBuffer(CAPACITY, "cpu", ["observation.state"], use_drq=False)

    def add(row: Row) -> Call:
        state, next_state = ({"observation.state": torch.from_numpy(obs)[None]} for obs in (row.obs, row.next_obs))
        action = torch.tensor([[float(row.action)]])
        return partial(buffer.add, state, action, row.reward, next_state, row.terminated, row.truncated)

    def rows(batch: Any) -> tuple[Any, ...]:
        states = batch["state"]["observation.state"], batch["next_state"]["observation.state"]
        return states[0], batch["action"].squeeze(1), batch["reward"], states[1], GAMMA * (1 - batch["done"])

    return Side(add, lambda: buffer.sample(256), rows)


def pfrl(module: Any, ours: bool) -> Side:
    buffer = pfrl_buffer(module, ours, CAPACITY)

    def add(row: Row) -> Call:
        append = partial(buffer.append, *row[:4], is_state_terminal=row.terminated)

        def append_last() -> None:
            append()
            buffer.stop_current_episode()

        return append_last if row.terminated or row.truncated else append

    def rows(batch: Any) -> tuple[Any, ...]:
        discount = batch["discount"] * (1 - batch["is_state_terminal"])
        return batch["state"], batch["action"], batch["reward"], batch["next_state"], discount

    return Side(add, lambda: module.batch_experiences(buffer.sample(32), "cpu", lambda x: x, GAMMA), rows)


def epymarl(module: Any, ours: bool) -> Side:
    """Each row is added when its episode ends, with all other rows of the episode, as a runner does."""
    from components.episode_buffer import EpisodeBatch
    from components.transforms import OneHot

    flag, agents = {"vshape": (1,), "dtype": torch.uint8}, {"group": "agents"}
    scheme = {
        "state": {"vshape": 4}, "obs": {"vshape": 4, **agents},
        "actions": {"vshape": (1,), **agents, "dtype": torch.long},
        "avail_actions": {"vshape": (2,), **agents, "dtype": torch.int}, "reward": {"vshape": (1,)}, "terminated": flag,
    }  # fmt: skip
    given = {"groups": {"agents": 2}, "preprocess": {"actions": ("actions_onehot", [OneHot(out_dim=2)])}}
    buffer = module.ReplayBuffer(scheme, buffer_size=CAPACITY // 3, max_seq_length=21, **given)
    past: list[Row] = []

    def add(row: Row) -> Call:
        past.append(row)
        if row.terminated or row.truncated:
            batch = EpisodeBatch(scheme, batch_size=1, max_seq_length=21, **given)
            seen = torch.from_numpy(np.stack([*(each.obs for each in past), row.next_obs]))[None]
            both, avail = seen[:, :, None].expand(-1, -1, 2, -1), torch.ones(1, len(past) + 1, 2, 2, dtype=torch.int)
            batch.update({"state": seen, "obs": both, "avail_actions": avail}, ts=slice(0, len(past) + 1))
            actions = torch.tensor([each.action for each in past])[None, :, None, None].expand(-1, -1, 2, -1)
            ends = torch.tensor([each.terminated for each in past])[None, :, None].to(torch.uint8)
            steps = {"actions": actions, "reward": torch.tensor([each.reward for each in past])[None, :, None]}
            batch.update({**steps, "terminated": ends}, ts=slice(0, len(past)), mark_filled=False)
            past.clear()
            return partial(buffer.insert_episode_batch, batch)
        return int  # nothing yet

    def rows(batch: Any) -> tuple[Any, ...]:
        held = batch["filled"][:, 1:, 0].bool()
        steps = (batch[name][:, :-1][held] for name in ("state", "actions", "reward", "terminated"))
        state, actions, reward, terminated = steps
        discount = GAMMA * (1 - terminated[:, 0].float())
        return state, actions[:, 0, 0], reward[:, 0], batch["state"][:, 1:][held], discount

    return Side(add, lambda: buffer.sample(32), rows)


HOSTS: dict[str, tuple[Callable[[Any, bool], Side], int]] = {  # and the steps of a return
    "CleanRL, Rainbow": (rainbow, 3),
    "CleanRL, SAC": (uniform, 1),
    "JAX loop": (uniform, 1),
    "Tianshou": (tianshou, 1),
    "PFRL": (pfrl, 3),
    "EPyMARL": (epymarl, 1),
    "LeRobot": (lerobot, 1),
}


def load(patch: Patch, sources: Path, edited: bool, name: str) -> ModuleType:
    """The module of the sources, with our edits or without, under a name."""
    loader = Edited(name, sources / patch.file, patch.edits if edited else [])
    sys.modules[name] = module = module_from_spec(loader.find_spec(name))
    loader.exec_module(module)
    return module


def cost(side: Side, calls_of: Callable[[Side], list[Call]]) -> float:
    """Microseconds of CPU time of one of these calls."""
    calls = calls_of(side)
    begin = time.process_time()
    for call in calls:
        call()
    return (time.process_time() - begin) / len(calls) * 1e6


def compare(name: str, sources: Path) -> dict[str, Any]:
    """Values, of a stream that fits; then microseconds of an add and a draw, medians of turns; all by side."""
    make, n = HOSTS[name]
    patch = PATCHES[name]
    rows = stream(ROWS, frames=make is rainbow)
    kinds = {"theirs": False, "ours": True}
    sides = {kind: make(load(patch, sources, ours, f"{patch.module}_{kind}"), ours) for kind, ours in kinds.items()}
    for side in sides.values():
        for row in rows:
            side.add(row)()
    right = expected(rows, n)
    found: dict[str, Any] = {"values": {kind: judge(side, right) for kind, side in sides.items()}}
    works = {"add": lambda side: [side.add(row) for row in rows[:TIMED]], "sample": lambda side: [side.sample] * 100}
    for work, calls in works.items():
        costs = {kind: partial(cost, side, calls) for kind, side in sides.items()}
        found[work] = {kind: median(taken) for kind, taken in in_turns(costs, ROUNDS).items()}
    return found


def main(name: str, sources: Path, what: str, seed: int = 0) -> None:
    """`what` is "compare", or the side of a whole run: "theirs" or "ours"."""
    torch.set_num_threads(1)
    np.bool8 = np.bool_  # type: ignore[attr-defined]  # of Gymnasium 0.29, which CleanRL pins
    sys.modules["smaclite"] = ModuleType("smaclite")  # EPyMARL's import for other environments, which no registry has
    patch = PATCHES[name]
    sys.path[:0] = [str(sources / patch.codebase / patch.root)]
    if what == "compare":
        sys.stdout.write(json.dumps(compare(name, sources)) + "\n")
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            play(name, patch, sources, what == "ours", seed, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute(), sys.argv[3], *map(int, sys.argv[4:]))
