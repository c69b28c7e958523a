"""Whole runs of teams whose copies are computed together: they are those of single copies, and they learn."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spread import AGENTS, SingleSpread, Spread
from tiers import long_but
from whole_runs import LONG, ON_POLICY, Runs, checkpoint, history

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

SHARED = dict.fromkeys(AGENTS, "all")
BATCHES: Any = {"hidden": (8,), "batch_size": 60, "minibatch_size": 30}
OFF, ON = Runs(total_steps=400, learner={"n_step": 1, "batch_size": 8}), Runs(total_steps=400, **ON_POLICY)
CASES: dict[str, tuple[Runs, Any, dict[str, Any]]] = {  # by algorithm: the run's settings, and the environment's
    "VDN": (OFF, mc.VDN(hidden=(8,)), {}),
    "QMIX": (OFF, mc.QMIX(hidden=(8,)), {"stated": True}),
    "QMIX with memory": (OFF, mc.QMIX(hidden=(8,), cell="gru", units=4, length=4, burn_in=1, period=2), {}),
    "MATD3": (OFF, mc.MATD3(hidden=(8,)), {"moves": True}),
    "MADDPG": (OFF, mc.MADDPG(hidden=(8,), rewards="own"), {}),
    "COMA": (ON, mc.COMA(**BATCHES), {"stated": True}),
    "HAPPO": (ON, mc.HAPPO(**BATCHES), {"moves": True}),
    "MAPPO": (ON, mc.MAPPO(**BATCHES), {}),
}


@pytest.mark.parametrize("name", long_but(["VDN", "MATD3", "COMA", "MAPPO"], CASES))
def test_a_run_is_that_of_single_copies(name: str, tmp_path: Path) -> None:
    """Weights and metrics are equal to the last bit, so the rows were, and so were the updates' batches."""
    runs, algorithm, options = CASES[name]
    policies = {"policies": SHARED} if name == "MAPPO" else {}
    told = []
    for kind in (Spread, SingleSpread):
        result = runs.train(tmp_path / kind.__name__, partial(kind, **options), algorithm, **policies)
        (policy,) = result.updates
        assert result.updates[policy] > 3
        evaluated = mc.evaluate(result.run_dir, 4).mean
        weights = {name: part.numpy() for name, part in checkpoint(result.run_dir, policy)["network"].items()}
        told.append((weights, history(result.run_dir), evaluated))
    np.testing.assert_equal(*told)


BALANCE = mc.NamedEnvironment("vmas:balance", {"max_steps": 100, "continuous_actions": False})
OFF_POLICY = {"learner": mc.LearnerConfig(gamma=0.97, batch_size=64, warmup=1_000), "updates_per_step": 0.05}
ON_POLICY_3: dict[str, Any] = {"learner": mc.LearnerConfig(gamma=0.95), "policies": SHARED}
QMIX = mc.QMIX(learning_rate=1e-3)
LEARNERS: dict[str, tuple[Any, Any, int, dict[str, Any]]] = {  # environment, algorithm, steps, settings
    "spread-qmix": (Spread, QMIX, 50_000, OFF_POLICY),
    "spread-mappo": (Spread, mc.MAPPO(batch_size=1_920, minibatch_size=480), 100_000, ON_POLICY_3),
    "balance-qmix": (BALANCE, QMIX, 80_000, {**OFF_POLICY, "updates_per_step": 0.02}),
    "balance-mappo": (BALANCE, mc.MAPPO(batch_size=7_680, minibatch_size=1_920), 200_000, ON_POLICY_3),
}
MARGINS = {Spread: 3.0, BALANCE.name: 30.0}  # over random play, which earns about -19, and about -30


def at_random(rng: np.random.Generator, choices: int, obs: Any) -> Any:
    """An action, or an action of each member."""
    return rng.integers(choices, size=3 if "members" in obs else None)


@LONG
@pytest.mark.parametrize("name", LEARNERS)
def test_a_team_learns_in_copies_that_are_computed_together(name: str, tmp_path: Path) -> None:
    env_fn, algorithm, steps, settings = LEARNERS[name]
    if env_fn is BALANCE:
        pytest.importorskip("vmas", reason="needs vmas")
    actor, folder = mc.ActorConfig(envs=64), str(tmp_path / "run")
    config = mc.Config(total_steps=steps, mode="serial", run_dir=folder, actor=actor, **settings)
    result = mc.train(env_fn, algorithm, config, progress=False)
    (policy,), choices = result.updates, 9 if env_fn is BALANCE else 5
    script = partial(at_random, np.random.default_rng(0), choices)
    least = sum(mc.evaluate(folder, 64, policies={policy: script}).mean.values())
    earned = sum(mc.evaluate(folder, 64).mean.values())
    assert earned > least + MARGINS[getattr(env_fn, "name", env_fn)], f"{least:.1f} at random, {earned:.1f} in the end"
