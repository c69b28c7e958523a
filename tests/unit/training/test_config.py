"""Each setting of a run out of its range is refused by its dotted name."""

import pytest
from refused import check_refused

from marlcore import Config
from marlcore.declared import hints_of

WRONG = {
    "total_steps": 0, "seed": -1, "mode": "sync", "updates_per_step": 0, "updates_tolerance": 0, "stages": [5, 3],
    "actor.processes": 0, "actor.envs": 0, "actor.sync_interval": 0, "actor.max_policy_lag": -1,
    "learner.processes": 0, "learner.batch_size": 0, "learner.n_step": 0, "learner.gamma": 1.1, "learner.warmup": 0,
    "learner.compile": "on", "learner.obs_norm": "on", "learner.prefetch": -1, "learner.publish_interval": 0,
    "learner.publish_mode": "on", "learner.log_interval": 0, "learner.checkpoint_interval": 0,
    "learner.checkpoint_seconds": 0.5, "learner.threads": 0,
    "replay.capacity": 0, "replay.stack": 0, "replay.pad": "one", "replay.mixture": {"a": 2}, "replay.path": "/no",
    "replay.alpha": -1, "replay.beta": 2, "replay.beta_steps": 0,
    "exploration.epsilon": 2, "exploration.ladder": -1, "exploration.schedules": {"epsilon": 1},
    "evaluation.interval": -1, "evaluation.episodes": 0, "evaluation.envs": 0, "evaluation.keep": 1.5,
    "self_play.pool": -1, "self_play.admit_updates": 0, "self_play.admit_win_rate": 2, "self_play.window": 0,
    "self_play.draw": "old", "self_play.power": -1, "self_play.latest": 2, "self_play.anchors": {"no": 1},
    "metrics.sinks": ["wandb"], "metrics.wandb_mode": "on",
    "supervision.max_restarts": -1, "supervision.window": -1, "supervision.backoff": -1,
    "supervision.actor_timeout": 0, "supervision.learner_timeout": 0,
}  # fmt: skip
FREE = {  # any text or truth value, or checked where the environment is known
    "run_dir", "policies", "learners", "actor.device", "learner.device", "learner.device_per_agent", "replay.save",
    "replay.clear_at_stage", "replay.prioritized", "self_play.side", "self_play.explore", "metrics.wandb_project",
    "supervision.serial_fallback",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_setting_out_of_its_range_is_refused_by_name(name):
    section, _, last = name.rpartition(".")
    plain = {section: {last: WRONG[name]}} if section else {last: WRONG[name]}
    check_refused(lambda: Config.from_dict(plain), ValueError, f"{name}: ")


def test_every_setting_has_a_range_or_is_free():
    assert hints_of(Config).keys() == WRONG.keys() | FREE
