"""Settings of any sizes: a run is refused in one line that names one of them, or it trains."""

import math
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import SMALL
from crowd import Crowd
from gymnasium.spaces import Box
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_runs import LONG, metrics_of

import marlcore as mc
from marlcore.declared import changed, hints_of
from marlcore.interfaces import ReplaySource

pytestmark = pytest.mark.usefixtures("undrawn")

SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 20, 31, 40, 64, 100)
FLAGS = (False, True)
OF_ALGORITHM = {  # what an algorithm's settings are drawn from
    **dict.fromkeys(("batch_size", "minibatch_size", "unroll", "length", "period", "n_step", "policy_delay"), SIZES),
    **dict.fromkeys(("units", "n_cos", "n_tau", "n_tau_prime", "n_policy", "mixing_units", "hyper_units"), SIZES),
    **dict.fromkeys(("double", "dueling", "shared", "rescale", "normalize_values", "actor_priorities"), FLAGS),
    **dict.fromkeys(("burn_in", "target_update_freq"), (0, *SIZES)),
    "epochs": (1, 2, 3),
    "hidden": ((1,), (3, 2), (4, 5, 6)),
    "clip_value": (None, 0.2),
    "target_kl": (None, 0.02),
    "correction": ("vtrace", "gae"),
    "rewards": ("sum", "own"),
    "cell": ("lstm", "gru"),
}
OF_RUNS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("learner.batch_size", "learner.n_step", "learner.publish_interval", "learner.warmup"), SIZES),
    **dict.fromkeys(("learner.log_interval", "learner.checkpoint_interval", "updates_tolerance"), SIZES),
    **dict.fromkeys(("replay.beta_steps", "evaluation.envs", "actor.sync_interval"), SIZES),
    **dict.fromkeys(("learner.norm_frozen_after", "actor.max_policy_lag"), (None, *SIZES)),
    **dict.fromkeys(("learner.obs_norm", "learner.reward_norm"), ("off", "frozen", "running")),
    **dict.fromkeys(("replay.prioritized", "replay.save", "replay.clear_at_stage"), FLAGS),
    "learner.prefetch": (0, 1, 2),
    "learner.gamma": (0.0, 0.9, 1.0),
    "actor.processes": (1, 2),
    "actor.envs": (1, 2, 3, 8),
    "replay.capacity": (1, 8, 40, 100, 300, 1_000, 5_000),
    "replay.stack": (1, 2, 3, 8),
    "replay.pad": ("repeat", "zero"),
    "replay.mixture": ({}, {"main": 1.0}, {"main": 0.7, "other": 0.3}),
    "replay.hindsight": ("off", "off", "future"),
    "exploration.ladder": (0.0, 7.0),
    "exploration.epsilon": (None, 0.5),
    "evaluation.interval": (0, 0, 50),
    "evaluation.episodes": (1, 2, 3),
    "updates_per_step": (0.05, 0.3, 1.0, "linear(0.1, 1, 100)"),
    "stages": ((), (30,), (1, 40, 90)),
    "total_steps": (1, 40, 80, 200),
}
KINDS, CONTINUOUS = sorted(SMALL.keys() - {"bc"}), ("td3", "td3bc", "sac")
USUAL = mc.Config(
    total_steps=100, mode="serial", updates_per_step=0.3, metrics=mc.MetricsConfig(sinks=("csv",)),
    actor=mc.ActorConfig(envs=2), learner=mc.LearnerConfig(batch_size=8, warmup=20, log_interval=5, device="cpu"),
)  # fmt: skip
NAMES = {name.rpartition(".")[2] for name in hints_of(mc.Config)}


class Brief(Crowd):
    """A crowd's game whose episodes have 1 to 9 rounds and end either way."""

    def __init__(self) -> None:
        super().__init__(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        looked, _ = super().reset(seed)
        self._length, self._terminates = int(self._rng.integers(1, 10)), bool(self._rng.integers(2))
        return looked, {agent: {"tag": "main"} for agent in looked}

    def step(self, actions: Any) -> Any:
        looked, earned, *_ = super().step({agent: int(np.max(action) > 0) for agent, action in actions.items()})
        over = self._round >= self._length
        if over:
            self.agents = []
        ends = [dict.fromkeys(looked, over and self._terminates), dict.fromkeys(looked, over and not self._terminates)]
        return looked, earned, *ends, {}


class Smooth(Brief):
    do = Box(-1, 1, (1,), np.float32)


def tables_of(name: str) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    own = {field.name: OF_ALGORITHM[field.name] for field in fields(SMALL[name][0]) if field.name in OF_ALGORITHM}
    if not SMALL[name][0].wants_team:
        return own, OF_RUNS | {"policies": (None, dict.fromkeys(("agent_0", "agent_1"), "both"))}
    return own, {each: values for each, values in OF_RUNS.items() if each != "replay.mixture"}  # teams have no tags


@st.composite
def any_run(draw: Any) -> tuple[Any, ...]:
    name = draw(st.sampled_from(KINDS))
    chosen = []
    for table in tables_of(name):
        names = draw(st.lists(st.sampled_from(sorted(table)), max_size=6, unique=True))
        chosen.append({each: draw(st.sampled_from(table[each])) for each in names})
    return name, *chosen


def check_refused_or_trained(folder: Path, run: tuple[Any, ...]) -> bool:
    """Whether the run trains; a refusal is one line that begins with a setting's name, and leaves nothing behind."""
    name, own, of_run = run
    run_dir = folder / "run"
    try:
        algorithm = replace(SMALL[name][0], **own)
        config = changed(USUAL, {**of_run, "run_dir": str(run_dir)})
        result = mc.train(Smooth if name in CONTINUOUS else Brief, algorithm, config, progress=False)
    except (ValueError, TypeError) as error:
        named = re.fullmatch(r"(?:\w+ )?(?:\w+\.)*(\w+): expected [^\n]+, got [^\n]+", str(error))
        assert named and named[1] in NAMES | {field.name for field in fields(SMALL[name][0])}, f"{error!r} of {run}"
        assert not run_dir.exists(), f"{error!r} of {run}"
        return False
    assert all(math.isfinite(metric.value) for metric in metrics_of(run_dir)), run
    assert result.steps >= config.total_steps, run
    assert all(result.updates.values()) or not are_due(algorithm, config), run
    return any(result.updates.values())


def are_due(algorithm: Any, config: mc.Config) -> bool:
    """Whether each policy takes enough steps for updates, with some to spare."""
    alone = algorithm.wants_team or config.policies is not None
    steps, source = config.total_steps / (1 if alone else 2), algorithm.source(ReplaySource())
    if isinstance(source, mc.QueueSource):
        return steps > source.batch_size + 2 * config.lanes
    return 0.05 * (steps - config.learner.warmup - 2 * config.lanes) > 2


@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=LONG)])
def test_settings_are_refused_in_one_line_or_train(tmp_path: Path, examples: int) -> None:
    trained = []

    @settings(max_examples=examples, suppress_health_check=[*HealthCheck])
    @given(any_run())
    def check(run: tuple[Any, ...]) -> None:
        folder = tmp_path / str(len(trained))
        trained.append(check_refused_or_trained(folder, run))
        shutil.rmtree(folder, ignore_errors=True)

    check()
    assert any(trained)
