"""Whole runs of every kind of algorithm: they repeat themselves, go on where they ended, and survive kills."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from crowd import Naming
from hunt import HUNT
from processes import until
from tiers import long_but
from whole_runs import LONG, ON_POLICY, Runs, checkpoint, history, kill, updating, values_of

import marlcore as mc
from marlcore.envs import Recall
from marlcore.evaluation import SavedRun
from marlcore.loops import build_model

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")


def draw_and_update(update: Any, batch: Any) -> mc.Update:
    """Draws from torch's global generator, as dropout does."""
    torch.rand(1)
    return update(batch)


CARTPOLE = partial(gymnasium.make, "CartPole-v1")
PPO = mc.PPO(hidden=(16,), batch_size=64, minibatch_size=32, epochs=2)
R2D2 = mc.R2D2(hidden=(16, 16), units=12, length=12, burn_in=4, period=8)
RECALL = {"replay": {"prioritized": True}, "learner": {"batch_size": 8, "warmup": 100, "n_step": 3}}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "iqn": (HUNT, "iqn", {}),
    "ppo": (CARTPOLE, PPO, ON_POLICY),
    "r2d2": ("recall", R2D2, {**RECALL, "actor": {"envs": 4}, "updates_per_step": 0.05}),
    "td3": (Naming, mc.TD3(cell="gru", units=12, length=12, burn_in=4, period=8), {**RECALL, "updates_per_step": 0.05}),
    "sac": (Naming, updating(mc.SAC, draw_and_update)(), {"learner": {"n_step": 1}}),
}
runs = Runs()


@pytest.mark.parametrize("kind", long_but(["ppo"], ["iqn", "ppo", "r2d2", "sac", "td3"]))
def test_a_serial_run_repeats_itself_exactly_under_a_seed(tmp_path: Path, kind: str) -> None:
    env_fn, algorithm, changes = KINDS[kind]
    histories, networks = [], []
    for i, seed in enumerate([3, 3, 4]):
        torch.manual_seed(i)  # which the run neither takes over nor changes
        outside = torch.get_rng_state()
        run_dir = runs.train(tmp_path / str(i), env_fn, algorithm, seed=seed, **changes).run_dir
        histories.append(history(run_dir))
        networks.append([*checkpoint(run_dir)["network"].values()])
        assert torch.equal(torch.get_rng_state(), outside)
    assert len(histories[0]) > 50
    assert histories[0] == histories[1] != histories[2]
    first, same, other = networks
    assert all(map(torch.equal, first, same)) and not all(map(torch.equal, first, other))


def leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for key in state for leaf in leaves(state[key])]
    return [leaf for value in state for leaf in leaves(value)] if isinstance(state, (list, tuple)) else [state]


def saved_parts(state: dict[str, Any]) -> list[Any]:
    """The parts of a checkpoint that a resumed run takes over; of a sampler's state, all but the rows."""
    sampler = state.get("sampler", {})  # a queue has none
    parts = [state[name] for name in ("network", "trainer", "torch")]
    return leaves([*parts, sampler.get("generator"), sampler.get("batches")])


@pytest.mark.parametrize("kind", long_but(["sac"], ["iqn", "td3", "r2d2", "ppo", "sac"]))
def test_a_resumed_run_has_what_was_saved_bit_for_bit(tmp_path: Path, kind: str) -> None:
    """A resumed run without an update saves the same networks, targets, moments and generators; then it learns."""
    env_fn, algorithm, changes = KINDS[kind]
    first = runs.train(tmp_path, env_fn, algorithm, **changes)
    before = checkpoint(first.run_dir)
    more = runs.train(tmp_path, env_fn, algorithm, total_steps=first.steps + 1, resume=True, **changes)
    after = checkpoint(first.run_dir)
    assert more.steps > first.steps and more.updates == first.updates
    assert after["version"] > before["version"], "rows of a saved replay would be of a future version"
    for saved, resumed in zip(saved_parts(before), saved_parts(after), strict=True):
        assert torch.equal(saved, resumed) if isinstance(saved, torch.Tensor) else saved == resumed
    last = runs.train(tmp_path, env_fn, algorithm, total_steps=900, resume=True, **changes)
    assert last.updates["agent_0"] > first.updates["agent_0"]


@LONG
@pytest.mark.parametrize(
    ("kind", "role"), [("ppo", "learner-agent_0"), ("ppo", "actor-1"), ("r2d2", "learner-agent_0"), ("r2d2", "actor-0")]
)
def test_a_killed_worker_is_replaced_and_the_run_ends_well(tmp_path: Path, kind: str, role: str) -> None:
    env_fn, algorithm, changes = KINDS[kind]
    changes = {**changes, "supervision": {"backoff": 0.0, "max_restarts": 10}}
    changes["actor"] = mc.ActorConfig(processes=2, envs=2)
    kills, total = 0, {"ppo": 12_000, "r2d2": 6_000}[kind]
    with runs.start(tmp_path, env_fn, algorithm, mode="async", total_steps=total, **changes) as run:
        while run.status().running and kills < 2:
            due = run.status().updates["agent_0"] + 20
            until(lambda: not run.status().running or run.status().updates["agent_0"] >= due)  # noqa: B023
            if run.status().running:
                kill(run, role)
                kills += 1
        result = run.wait(timeout=1800)
    assert kills and result.restarts[role] >= 1 and result.steps >= total
    due = total * {"ppo": 4 * 0.8 / 64, "r2d2": 0.04 * 0.9}[kind]
    assert result.updates["agent_0"] > due


@LONG
def test_an_evaluated_run_keeps_the_best_memory(tmp_path: Path) -> None:
    """Evaluations act with memory: the answer is not in the last observation."""
    algorithm = mc.R2D2(hidden=(32, 32), units=24, length=8, burn_in=0, period=8, learning_rate=2e-3)
    run_dir = runs.train(
        tmp_path, partial(Recall, cues=2, delay=3), algorithm, total_steps=6_000, updates_per_step=0.1,
        actor={"envs": 4}, learner={"batch_size": 32, "warmup": 100}, replay={"prioritized": True},
        evaluation={"interval": 1_500, "episodes": 40},
    ).run_dir  # fmt: skip
    assert max(values_of(run_dir, "eval_return")) > 0.95
    assert mc.evaluate(run_dir, episodes=200, which="best").mean["agent_0"] > 0.95
    policy, env = mc.load_policy(run_dir, "agent_0", "best"), Recall(cues=2, delay=3)
    right, reward = 0.0, 0.0
    for episode in range(50):
        policy.reset()
        obs, _ = env.reset(seed=episode)
        over = False
        while not over:
            obs, reward, over, _, _ = env.step(np.int64(policy.act(obs, reward=reward)))
        right += reward
    assert right > 45


@pytest.mark.parametrize("algorithm", [mc.TD3, mc.SAC])
def test_only_the_policy_is_published(tmp_path: Path, algorithm: Any) -> None:
    run_dir = runs.train(tmp_path, Naming, algorithm(), total_steps=200, learner={"n_step": 1}).run_dir
    policy = SavedRun.of(run_dir).policies[0]
    model = build_model(policy, runs.config)
    assert {name.split(".")[1] for name in model.acting.state_dict()} == {"torso", "output"}
    assert len(model.whole.state_dict()) > len(model.acting.state_dict())
