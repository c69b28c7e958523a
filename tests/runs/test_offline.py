"""Runs on recorded data: their directories are as those of other runs, they resume, and they learn."""

import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import offline as example
import pytest
import torch
from gymnasium import spaces as gym
from hunt import HUNT
from refused import Refused, check_refused
from whole_runs import LONG, MODES, changed, checkpoint, config_of, metrics_of, values_of

import marlcore as mc
from marlcore.config import applied_offline

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CARTPOLE, PENDULUM = "gymnasium:CartPole-v1", "gymnasium:Pendulum-v1"
SMALL = mc.Config(mode="serial", learner=mc.LearnerConfig(batch_size=16, n_step=1, log_interval=10, device="cpu"))


def random_episodes(spaces, count=6, steps=30, seed=0):
    rng = np.random.default_rng(seed)
    field, actions, size = spaces.obs, spaces.action, (steps, *spaces.action.shape)
    for _ in range(count):
        obs = rng.normal(size=(steps + 1, *field.shape)).astype(field.dtype)
        action = rng.uniform(-1, 1, size) if isinstance(actions, gym.Box) else rng.integers(2, size=steps)
        yield {"obs": obs, "action": action.astype(actions.dtype), "reward": rng.normal(size=steps)}


def spaces_of(name):
    with gymnasium.make(name.partition(":")[2]) as env:
        return mc.Spaces(env.observation_space, env.action_space)


def filled(name, algorithm=None, **options):
    spaces = spaces_of(name)
    return mc.ReplayBuffer.from_episodes(random_episodes(spaces, **options), (algorithm or mc.BC()).transition(spaces))


def config_in(folder, **changes):
    return changed(SMALL, run_dir=str(folder / "run"), **changes)


def train(folder, data, algorithm, updates=30, env_fn=CARTPOLE, resume=False, callback=None, init_from=None, **changes):
    config = config_in(folder, **changes)
    options = {"resume": folder / "run" if resume else None, "callback": callback, "init_from": init_from}
    return mc.train_offline(data, algorithm, updates, env_fn, config, progress=False, **options)


OF_WINDOWS = mc.R2D2(hidden=(8, 8), units=6, length=12, burn_in=4, period=8)
ALGORITHMS = [
    *((kind(), CARTPOLE) for kind in (mc.DQN, mc.IQN, mc.CQL, mc.BC)),
    (OF_WINDOWS, CARTPOLE),
    *((kind(), PENDULUM) for kind in (mc.TD3, mc.TD3BC, mc.SAC, mc.BC)),
]


@LONG
def test_updates_wait_for_evaluations_that_are_due(tmp_path: Path) -> None:
    evaluation = {"interval": 100, "episodes": 2, "wait": True}
    with filled(CARTPOLE) as data:
        result = train(
            tmp_path, data, mc.BC(), 450, mode="async", learner={"publish_interval": 5}, evaluation=evaluation
        )
    assert values_of(result.run_dir, "eval_skipped") == [0.0] * 5


@pytest.mark.parametrize(("algorithm", "name"), ALGORITHMS, ids=lambda value: type(value).__name__)
def test_every_off_policy_algorithm_learns_from_a_replay(tmp_path, algorithm, name):
    with filled(name, algorithm) as replay:
        before = replay.sampler(8, seed=0, min_size=1).sample().reward.copy()
        result = train(tmp_path, replay, algorithm, env_fn=name, learner={"obs_norm": "running"})
        assert (replay.sampler(8, seed=0, min_size=1).sample().reward == before).all()  # it is still the caller's
    assert result.updates == {"agent_0": 30} and result.steps == 30 and np.isnan(result.returns["agent_0"])
    losses = values_of(result.run_dir, "loss")
    assert len(losses) == 1 + 30 // 10 and np.isfinite(losses).all(), "of the first update, and each log_interval"
    policy = mc.load_policy(result.run_dir, "agent_0", weights_only=True)
    assert policy.spaces.action.contains(policy.act(np.zeros(policy.spaces.obs.shape, np.float32)))


@MODES
def test_a_run_evaluates_and_resumes(tmp_path, mode):
    changes = {"mode": mode, "evaluation": {"interval": 20, "episodes": 2}, "replay": {"prioritized": True}}
    with filled(CARTPOLE) as replay:
        train(tmp_path, replay, "dqn", 40, **changes)
        result = train(tmp_path, replay, "dqn", 90, resume=True, **changes)
        says = "the run is complete; to continue it, expected more than the 90 steps that the run has taken, got 90"
        check_refused(lambda: train(tmp_path, replay, "dqn", 90, resume=True, **changes), ValueError, says)
    assert result.steps == result.updates["agent_0"] == 90
    assert checkpoint(tmp_path / "run")["updates"] == 90
    evaluated = [metric.step for metric in metrics_of(result.run_dir) if metric.name == "eval_return"]
    assert evaluated[-1] == 90 and (mode == "async" or len(evaluated) > 2)
    assert set(mc.evaluate(result.run_dir, episodes=2, which="best").mean) == {"agent_0"}
    says = "got 1: a run on recorded data has no actors, and its steps are updates$"
    with pytest.raises(ValueError, match=f"^resume: expected actor.processes 0, as in the run so far, {says}"):
        mc.train(CARTPOLE, "dqn", config_in(tmp_path), progress=False, resume=tmp_path / "run")


def test_a_resumed_run_makes_the_updates_of_a_whole_one(tmp_path):
    with filled(CARTPOLE) as replay:
        for folder, *parts in ((tmp_path / "whole", 30), (tmp_path / "resumed", 12, 30)):
            for updates in parts:
                train(folder, replay, "dqn", updates, resume=updates != parts[0])
    whole, resumed = (checkpoint(tmp_path / name / "run")["network"] for name in ("whole", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("at", [12, 0])
def test_a_killed_run_makes_the_updates_after_its_checkpoint_again(tmp_path, at):
    """Its saved progress was newer; with no checkpoint at all, the run begins anew."""
    path, changes = tmp_path / "run" / "checkpoints" / "agent_0.pt", {"evaluation": {"interval": 5, "episodes": 1}}
    with filled(CARTPOLE) as replay:
        train(tmp_path, replay, "dqn", 12, **changes)
        saved = path.read_bytes()
        train(tmp_path, replay, "dqn", 40, resume=True, **changes)
        path.write_bytes(saved) if at else path.unlink()
        result = train(tmp_path, replay, "dqn", 40, resume=True, **changes)
    assert result.steps == result.updates["agent_0"] == checkpoint(result.run_dir)["updates"] == 40
    metrics = metrics_of(result.run_dir)
    assert [metric.step for metric in metrics if metric.name == "loss"] == [0, 9, 19, 29, 39]
    evaluated = [metric.step for metric in metrics if metric.name == "eval_return"]
    assert evaluated == sorted(evaluated) and min(step for step in evaluated if step > at) < at + 12
    assert min(metric.value for metric in metrics if metric.name == "env_steps_per_s") > 0


def test_a_durable_replay_is_read_by_each_new_run_alike(tmp_path):
    """A run leaves no state of its sampler beside the data."""
    path, spaces = tmp_path / "data" / "data.marlcore", spaces_of(CARTPOLE)
    path.parent.mkdir()
    networks = []
    with mc.ReplayBuffer.create(mc.DQN().transition(spaces), 400, path=path, durable=mc.Durable()) as data:
        with data.writer() as writer:
            for episode in random_episodes(spaces):
                last, episode["obs"] = episode["obs"][-1:], episode["obs"][:-1]
                writer.add_batch(**episode, truncated=np.arange(30) == 29, final_obs=last)
        for name in ("a", "b"):
            run = train(tmp_path / name, data, "dqn", replay={"prioritized": True}).run_dir
            networks.append(checkpoint(run)["network"])
        train(tmp_path / "b", data, "dqn", 60, resume=True, replay={"prioritized": True, "alpha": 0.7})
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])
    assert [file.name for file in path.parent.iterdir()] == ["data.marlcore"]


@MODES
def test_a_callback_or_a_condition_ends_a_run(tmp_path, mode):
    """A last evaluation follows, and the run can be resumed."""
    ways = {
        "the callback returned Stop": {"callback": lambda metric: mc.Stop},
        "stop.threshold: loss is ": {"stop": {"metric": "loss", "threshold": -1e9}},
    }
    changes = {"mode": mode, "evaluation": {"interval": 10**6, "episodes": 2}}
    with filled(CARTPOLE) as replay:
        for number, (reason, way) in enumerate(ways.items()):
            folder = tmp_path / str(number)
            result = train(folder, replay, "dqn", 10**6, **changes, **way)
            assert result.stopped.startswith(reason) and 0 < result.steps == result.updates["agent_0"] < 10**6
            assert checkpoint(result.run_dir)["updates"] == result.steps
            evaluated = [metric.step for metric in metrics_of(result.run_dir) if metric.name == "eval_return"]
            assert evaluated == [result.steps]
            more = train(folder, replay, "dqn", result.steps + 20, resume=True, **changes)
            assert more.steps == result.steps + 20 and more.stopped == ""


def test_a_run_starts_from_other_weights_and_others_from_its_own(tmp_path):
    """One has actors, and is too short for an update."""
    still = config_in(tmp_path / "acting", total_steps=40, learner={"warmup": 9_000}, updates_per_step=0.1)
    with filled(CARTPOLE) as replay:
        first = train(tmp_path / "first", replay, "dqn").run_dir
        second = train(tmp_path / "second", replay, mc.DQN(learning_rate=1e-12), 1, init_from=first).run_dir
    acting = mc.train(CARTPOLE, "dqn", still, progress=False, init_from=first).run_dir
    before, *after = (checkpoint(run) for run in (first, second, acting))
    assert [state["updates"] for state in after] == [1, 0]
    for state in after:
        torch.testing.assert_close(state["network"], before["network"])


def test_each_policy_has_its_replay(tmp_path):
    env = HUNT()
    spaces = {agent: mc.Spaces(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.agents}
    replays = {agent: mc.ReplayBuffer.from_episodes(random_episodes(spaces[agent])) for agent in env.agents}
    result = train(tmp_path, replays, "cql", 20, HUNT)
    for replay in replays.values():
        replay.close()
    assert result.updates == dict.fromkeys(env.agents, 20) and result.steps == 20 * len(env.agents)


def test_recorded_data_need_no_warm_up():
    config = applied_offline(mc.Config(learners={"a": mc.LearnerConfig(n_step=1)}))
    assert config.learner.warmup == config.learner_of("a").warmup == 1 and config.offline


def test_data_without_an_environment_need_its_spaces(tmp_path):
    with filled(CARTPOLE) as replay:
        result = train(tmp_path, replay, mc.BC(), env_fn=spaces_of(CARTPOLE))
        for name in ("interval", "seconds"):
            says = f"evaluation.{name}: expected 0 without an environment, got 5"
            call = offline(mc.BC(), spaces_of(CARTPOLE), evaluation={name: 5})
            check_refused(partial(call, tmp_path / "2", replay), ValueError, says)
    assert mc.load_policy(result.run_dir, "agent_0").act(np.zeros(4, np.float32)) in (0, 1)
    says = "env_fn: expected an environment, got a run on recorded data without one; pass env_fn="
    check_refused(lambda: mc.evaluate(result.run_dir), mc.EnvironmentFailed, says)
    assert mc.evaluate(result.run_dir, episodes=1, env_fn=CARTPOLE).mean


def limited(folder, replay):
    limiter = mc.RateLimiter(samples_per_insert=8, min_size=1, tolerance=512)
    with mc.ReplayBuffer.create(replay.spec, 100, limiter=limiter) as other:
        train(folder, other, "dqn")


def beyond(folder, replay):
    with mc.ReplayBuffer.create(replay.spec, 100) as other, other.writer() as writer:
        for action in (1, 2):
            writer.add(np.zeros(4, np.float32), action, 0.0, terminated=True)
        train(folder, other, "dqn")


def offline(algorithm, env_fn=CARTPOLE, updates=30, **changes):
    return lambda folder, data: train(folder, data, algorithm, updates, env_fn, **changes)


REFUSED: dict[str, Refused] = {
    "updates": (offline("dqn", updates=0), ValueError, "updates: expected an integer of at least 1, got 0"),
    "replay": (lambda folder, _: train(folder, 3, "dqn"), TypeError, "replay: expected a ReplayBuffer, got 3"),
    "policies": (offline("dqn", HUNT), TypeError, "replay: expected a dict of ReplayBuffers for the policies ['"),
    "limiter": (limited, ValueError, "replay: expected a replay without a limiter, got RateLimiter("),
    "an action": (beyond, ValueError, "replay action: expected one of Discrete(2), counted from 0, got 2"),
    "spec": (offline("td3", PENDULUM), ValueError, "replay spec obs: expected float32 (3,), got float32 (4,)"),
    "state": (offline("r2d2"), ValueError, "expected float32 (64,) every 20, got none"),
    "ppo": (offline("ppo"), ValueError, "algorithm: expected an algorithm that learns from recorded data, got PPO"),
    "stack": (offline("dqn", replay={"stack": 500}), ValueError, "stack"),
    "returns": (
        offline("dqn", stop={"patience": 9}), ValueError,
        "stop.metric: expected a metric of a run without actors, got 'episode_return'",
    ),
    "bc": (lambda folder, _: mc.train(CARTPOLE, "bc", config_in(folder)), ValueError, "use train_offline"),
    "no actors": (
        lambda folder, _: mc.train(CARTPOLE, "dqn", config_in(folder, actor={"processes": 0})), ValueError,
        "actor.processes: expected an integer of at least 1, got 0, which is for train_offline",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_data_and_settings_that_do_not_fit_are_refused(tmp_path, case):
    call, error, says = REFUSED[case]
    with filled(CARTPOLE) as replay:
        check_refused(lambda: call(tmp_path, replay), error, says)
    assert not (tmp_path / "run").exists()


def test_settings_of_acting_are_told_and_change_nothing(tmp_path, caplog):
    caplog.set_level("INFO")
    unused = {
        "total_steps": 9, "actor": {"envs": 9}, "replay": {"save": True, "mixture": {"main": 1.0}},
        "learner": {"warmup": 9}, "stop": {"episodes": 9}, "stages": (5,), "stage_names": ("late",),
        "self_play": mc.SelfPlayConfig(pool=4), "learners": {"agent_0": mc.LearnerConfig(warmup=7, device="cpu")},
        "replays": {"agent_0": mc.ReplayConfig(capacity=9)},
    }  # fmt: skip
    with filled(CARTPOLE) as replay:
        result = train(tmp_path, replay, "dqn", 3, **unused)
    assert result.updates == {"agent_0": 3} and not [*(result.run_dir / "checkpoints").glob("*.replay")]
    told = [line.partition(":")[0] for line in caplog.messages if "a run on recorded data has no use for it" in line]
    sections = "actor.envs replay.save replay.mixture learner.warmup stop.episodes"
    own = ["learners.agent_0.warmup", "replays.agent_0.capacity"]
    assert sorted(told) == sorted(["total_steps", "stages", "stage_names", "self_play", *sections.split(), *own])
    assert mc.Config.from_dict(config_of(result.run_dir)).replays == {"agent_0": mc.ReplayConfig()}


@LONG
def test_bc_learns_cartpole_from_20_demonstrations(tmp_path):
    """The control is the same policy before it learned."""
    result = example.clone(2_000, run_dir=str(tmp_path / "run"))
    untrained = example.clone(1, run_dir=str(tmp_path / "control"))
    assert mc.evaluate(result.run_dir, episodes=40).mean["agent_0"] >= 475
    assert mc.evaluate(untrained.run_dir, episodes=40).mean["agent_0"] < 300


def medians(folder, algorithms, episodes, updates, env_fn=CARTPOLE, seeds=3, **learner):
    """The mean return of the data, and of both algorithms: of the first the median of seeds, of the control one."""
    episodes, returns = list(episodes), []
    for algorithm, count in zip(algorithms, (seeds, 1), strict=True):
        means = []
        for seed in range(count):
            with mc.ReplayBuffer.from_episodes(episodes) as replay:
                changes = {"seed": seed, "learner": {"batch_size": 64, **learner}}
                result = train(folder / f"{algorithm}{seed}", replay, algorithm, updates, env_fn, **changes)
            means.append(mc.evaluate(result.run_dir, episodes=20).mean["agent_0"])
        returns.append(np.median(means))
    data = np.mean([episode["reward"].sum() for episode in episodes])
    print(f"data {data:.1f}, {algorithms} {np.round(returns, 1)}", file=sys.stderr)
    return data, *returns


@LONG
def test_cql_learns_from_an_expert_where_dqn_cannot(tmp_path):
    """The expert never takes the other action, whose value DQN makes up."""
    _, cql, dqn = medians(tmp_path, ("cql", "dqn"), example.demonstrations(20), 3_000)
    assert cql >= 400 and dqn < 100


@LONG
def test_cql_surpasses_its_data_where_bc_cannot(tmp_path):
    """One run in ten ends in a dip, and three of five hardly ever."""
    episodes = example.demonstrations(200, clumsy=0.5, act=example.hasty)
    data, cql, bc = medians(tmp_path, ("cql", "bc"), episodes, 2_000, seeds=5)
    assert cql > 3 * data and bc < 2 * data


def swing(obs):
    """Swings the pendulum up by its energy, and holds it near the top."""
    cosine, sine, speed = obs
    up = -8 * sine - 2 * speed if cosine > 0.9 else 2 * np.sign(speed) * (1 if speed**2 / 2 < 15 * (1 - cosine) else -1)
    return np.array([np.clip(up, -2, 2)], np.float32)


@LONG
def test_td3bc_surpasses_its_data_where_bc_cannot(tmp_path):
    """70 % of the actions are random."""
    episodes = example.demonstrations(100, clumsy=0.7, act=swing, env=PENDULUM.partition(":")[2])
    data, td3bc, bc = medians(tmp_path, ("td3bc", "bc"), episodes, 4_500, PENDULUM, obs_norm="frozen")
    assert td3bc > data + 200 and bc < td3bc - 150
