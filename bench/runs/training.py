"""Training runs of marlcore, as the throughput benchmark compares them with its peers'."""

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import marlcore as mc
from marlcore.record import read_metrics

from ..peers.plain_dqn import COPIES, Setting, Trained
from ..processes import fresh_processes

BEGIN = 0.3  # of a run's steps pass before its rate is taken


def train(env: Any, setting: Setting, steps: int, mode: str = "async") -> Trained:
    """marlcore's training on 16 copies of `env`; a learner process for each agent."""
    return _run(env, _config(setting, steps, mode, COPIES), _dqn(setting))


def train_on_policy(env: Any, setting: Setting, steps: int, mode: str = "async", actors: int = 1) -> Trained:
    """marlcore's PPO; an actor's copies are COPIES, or a vector environment's."""
    ppo = mc.PPO(
        learning_rate=setting.learning_rate, hidden=(setting.hidden, setting.hidden), activation="relu",
        epochs=setting.epochs, batch_size=setting.batch, minibatch_size=setting.minibatch or setting.batch,
        target_kl=None,
    )  # fmt: skip
    learner, actor = mc.LearnerConfig(gamma=setting.gamma, device="cpu"), mc.ActorConfig(processes=actors, envs=COPIES)
    return _run(env, mc.Config(total_steps=steps, mode=mode, actor=actor, learner=learner), ppo)


def act_alone(steps: int, env: Any, envs: int, processes: int = 1, agents: int = 1, **beside: Any) -> float:
    """Steps a second of marlcore's actors; unless `beside` sets it, their learners' warm-up is beyond the run's end."""
    never = steps // agents + 2 * envs * processes
    setting = Setting(warmup=never, capacity=2 * never, epsilon=0.0)  # lanes fill unevenly, and boundaries take rows
    config = _config(setting, steps, "async", envs)
    config = replace(config, updates_per_step=None, actor=mc.ActorConfig(processes=processes, envs=envs), **beside)
    return _run(env, config, _dqn(setting)).rate


def act_apart(steps: int, env: Any, envs: int, runs: int, agents: int = 1) -> float:
    """Steps a second of several such runs together, which share nothing but the machine: the limit of `processes`."""
    with fresh_processes(runs) as pool:
        rates = [pool.submit(act_alone, steps // runs, env, envs, agents=agents) for _ in range(runs)]
        return sum(rate.result() for rate in rates)


class HangingSink:
    """A sink that never returns from its first metric."""

    def __init__(self, run_dir: Path) -> None: ...

    def record(self, metric: Any) -> None:
        threading.Event().wait()

    flush = close = str  # never reached


def _config(setting: Setting, steps: int, mode: Any, envs: int) -> mc.Config:
    learner = {"batch_size": setting.batch, "gamma": setting.gamma, "warmup": setting.warmup}
    return mc.Config(
        total_steps=steps,
        mode=mode,
        updates_per_step=setting.updates_per_step,
        updates_tolerance=setting.tolerance,
        actor=mc.ActorConfig(envs=envs),
        replay=mc.ReplayConfig(capacity=setting.capacity),
        learner=mc.LearnerConfig(**learner, n_step=1, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=setting.epsilon),
    )


def _dqn(setting: Setting) -> Any:
    return mc.DQN(
        learning_rate=setting.learning_rate, hidden=(setting.hidden, setting.hidden), double=False, dueling=False,
        target_update_freq=setting.target_updates, reward_scale=1.0,
    )  # fmt: skip


@contextmanager
def endless(env: Any, algorithm: Any, config: mc.Config) -> Iterator[mc.Run]:
    """A run that goes on until the block ends, in a directory that it leaves nothing of."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, total_steps=10**9, run_dir=str(Path(folder) / "run"))
        with mc.start(env, algorithm, config) as run:
            yield run


def run(env: Any, algorithm: Any, config: mc.Config) -> tuple[mc.Result, list[Any]]:
    """A run in a directory that it leaves nothing of; its result, and its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        result = mc.train(env, algorithm, replace(config, run_dir=str(Path(folder) / "run")), progress=False)
        return result, read_metrics(result.run_dir / "metrics.csv")


def _run(env: Any, config: mc.Config, algorithm: Any) -> Trained:
    result, metrics = run(env, algorithm, config)
    late = [m for m in metrics if m.name == "episode_length" and m.step >= BEGIN * config.total_steps]
    first, last = late[0], late[-1]
    rate = (last.step - first.step) / (last.time_s - first.time_s)
    return Trained(rate, config.total_steps, sum(result.updates.values()))


def play_both_sides(run_dir: Path, opponent: Any, games: int, **options: Any) -> NDArray[np.float64]:
    """The returns of a run's policy against an opponent, in half of the games from each side."""
    agents = json.loads((run_dir / "config.json").read_text())["policies"]
    returns = [
        mc.evaluate(run_dir, games // 2, policies={other: opponent}, seed=seed, **options).returns[agent]
        for seed, (agent, other) in enumerate(zip(agents, reversed(agents), strict=True))
    ]
    return np.concatenate(returns)
