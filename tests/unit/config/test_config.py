"""Settings of a run and policies of its agents: bad ones are refused before a run starts, and JSON restores them."""

import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import pytest
from arena import weak
from crowd import Corridor
from gymnasium.spaces import Box, Dict, Discrete, Text
from refused import Refused, check_refused, refusals

import marlcore as mc
from marlcore.config import ExplorationConfig, Schedule, assign, schedules_of, with_own_epsilons
from marlcore.declared import hints_of
from marlcore.run import Launch
from marlcore.self_play import policies_in_self_play
from marlcore.spaces import Spaces

CARTPOLE = "CartPole-v1"
CARTPOLE_ALONE = partial(gymnasium.make, CARTPOLE)
SPACES = {f"agent_{i}": Spaces(Box(-1, 1, (3,)), Discrete(2)) for i in range(3)}
OTHER = Spaces(Box(-1, 1, (4,)), Discrete(2))

WRONG = {
    "run_dir": 3, "total_steps": 0, "seed": -1, "mode": "sync", "updates_per_step": 0, "updates_tolerance": 0,
    "stages": [5, 3], "stage_names": 3, "learners": 3, "replays": 3, "explorations": 3, "ratios": 3,
    "actor.processes": -1, "actor.envs": 0, "actor.device": 3, "actor.sync_interval": 0, "actor.max_policy_lag": -1,
    "learner.device": 3, "learner.device_per_agent": 3,
    "learner.processes": 0, "learner.batch_size": 0, "learner.n_step": 0, "learner.gamma": 1.1, "learner.warmup": 0,
    "learner.compile": "on", "learner.engine": "numpy", "learner.obs_norm": "on", "learner.reward_norm": "on",
    "learner.norm_frozen_after": 0, "learner.prefetch": -1, "learner.publish_interval": 0,
    "learner.publish_mode": "on", "learner.log_interval": 0, "learner.checkpoint_interval": 0,
    "learner.checkpoint_seconds": math.inf, "learner.threads": 10**6, "learner.timeout": 0,
    "replay.capacity": 0, "replay.stack": 0, "replay.pad": "one", "replay.mixture": {"a": 2}, "replay.path": "/no",
    "replay.alpha": math.inf, "replay.beta": 2, "replay.beta_steps": 0, "replay.save": 3, "replay.clear_at_stage": 3,
    "replay.durable": True, "replay.prioritized": "no", "replay.hindsight": "on", "replay.hindsight_k": 0,
    "exploration.epsilon": 2, "exploration.ladder": math.inf, "exploration.schedules": {"odds": 1},
    "exploration.script": "bot",
    "evaluation.interval": -1, "evaluation.episodes": 0, "evaluation.envs": 0, "evaluation.keep": 1.5,
    "evaluation.seconds": -1, "evaluation.wait": 3,
    "self_play.pool": -1, "self_play.admit_updates": 0, "self_play.admit_win_rate": 2, "self_play.window": 0,
    "self_play.side": 3, "self_play.explore": 3, "self_play.draw": "old", "self_play.power": -1, "self_play.latest": 2,
    "self_play.anchors": {"no": 1}, "self_play.begin_win_rate": 1.5, "self_play.begin_step": 0, "self_play.block": 0,
    "self_play.rollback": 0, "self_play.rating": "glicko", "self_play.elo_k": 0, "self_play.reset": 2,
    "self_play.roles": {"main": "boss"},
    "stop.episodes": 0, "stop.seconds": 0, "stop.metric": 3, "stop.threshold": math.inf, "stop.patience": 0,
    "stop.min_delta": -1, "stop.window": 0, "stop.minimize": 3,
    "metrics.sinks": ["wandb"], "metrics.wandb_mode": "on", "metrics.wandb_project": 3,
    "cluster.address": "nowhere", "cluster.nodes": 0, "cluster.nodes_at_start": -1, "cluster.actors_per_node": 0,
    "cluster.resources": {"CPU": 0}, "cluster.lease_seconds": 0.4, "cluster.sync_seconds": -1,
    "cluster.flush_seconds": 0, "cluster.lane_rows": 2, "cluster.compress": "zip", "cluster.learners": {"a": "GPU=0"},
    "supervision.max_restarts": -1, "supervision.window": -1, "supervision.backoff": -1,
    "supervision.actor_timeout": math.inf, "supervision.learner_timeout": 0, "supervision.serial_fallback": 3,
}  # fmt: skip
LATER = {"policies", "teams"}  # checked where the environment is known


def test_a_setting_out_of_its_range_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for name, value in WRONG.items():
        section, _, last = name.rpartition(".")
        plain = {section: {last: value}} if section else {last: value}
        with subtests.test(name):
            check_refused(partial(mc.Config.from_dict, plain), (ValueError, TypeError), f"{name}: ")


def test_the_runs_epsilon_is_not_of_algorithms_with_their_own() -> None:
    """Otherwise SAC would explore by DQN's epsilon. Alone, SAC takes the run's."""
    policies = assign(
        {"a": OTHER, "b": Spaces(Box(-1, 1, (3,)), Box(-1, 1, (2,)))}, None, {"a": mc.DQN(), "b": mc.SAC()}, 1
    )
    given = mc.Config(exploration=ExplorationConfig(epsilon=0.3, ladder=7))

    def epsilons(config: mc.Config, some: tuple[Any, ...]) -> dict[str, Any]:
        config = with_own_epsilons(some, config)
        return {one.name: schedules_of(one.algorithm, config.of(one.name))["epsilon"].at(5) for one in some}

    own = {name: epsilons(mc.Config(), policies)[name] for name in "ab"}
    assert epsilons(given, policies) == {"a": 0.3, "b": own["b"]} and own["b"] != 0.3
    assert epsilons(given, policies[1:]) == {"b": 0.3}
    apart = mc.Config(explorations={"b": ExplorationConfig(epsilon=0.2)})
    assert epsilons(apart, policies) == {"a": own["a"], "b": 0.2}


def test_replays_differ_in_what_a_policy_may_have_for_itself(tmp_path: Path) -> None:
    run = mc.ReplayConfig(
        path=str(tmp_path), durable=True, stack=2, pad="zero", clear_at_stage=True, mixture={"a": 1.0}
    )
    own = mc.ReplayConfig(capacity=5000, prioritized=True, hindsight="final")
    config = mc.Config(replay=run, replays={"guard": own})
    assert config.of("guard").replay == replace(run, capacity=5000, prioritized=True, hindsight="final")


def test_every_setting_has_a_range_or_is_checked_later() -> None:
    assert hints_of(mc.Config).keys() == WRONG.keys() | LATER


def test_settings_cannot_be_changed() -> None:
    for section in [mc.Config(), *filter(is_dataclass, vars(mc.Config()).values())]:
        for field in fields(section):
            with pytest.raises(FrozenInstanceError):
                setattr(section, field.name, None)


def test_each_agent_has_a_policy_of_its_own_by_default() -> None:
    policies = assign(SPACES, None, "dqn", 1)
    assert [(policy.name, policy.agents) for policy in policies] == [(agent, (agent,)) for agent in SPACES]
    assert all(policy.algorithm == mc.DQN() for policy in policies)


@pytest.mark.parametrize("as_function", [False, True])
def test_agents_share_policies_of_different_algorithms(as_function: bool) -> None:
    names = {"agent_0": "red", "agent_1": "blue", "agent_2": "red"}
    red, blue = assign(SPACES, names.get if as_function else names, {"red": "dqn", "blue": mc.IQN(n_tau=4)}, 2)
    assert (red.agents, blue.agents) == (("agent_0", "agent_2"), ("agent_1",))
    assert (red.algorithm, blue.algorithm) == (mc.DQN(), mc.IQN(n_tau=4))
    assert red.spaces.stack == 2
    config = mc.Config(policies=lambda agent: "player")
    assert policies_in_self_play(config, ("red", "blue")) == {"red": "player", "blue": "player"}


def assigned(says: str, policies: Any, algorithm: Any = "dqn", error: Any = ValueError, **spaces: Spaces) -> Refused:
    return lambda: assign(SPACES | spaces, policies, algorithm, 1), error, says


def self_play(says: str, **changes: Any) -> Refused:
    return partial(mc.SelfPlayConfig, **{"pool": 4, "latest": 0.25, "anchors": {weak: 0.15}, **changes}), says


def schedule(value: Any, says: str, error: type[Exception] = ValueError) -> Refused:
    return partial(Schedule.from_value, "epsilon", value), error, says


def ratio(value: Any, says: str = "") -> Refused:
    return partial(mc.Config, mode="serial", updates_per_step=value), f"updates_per_step: expected a number{says}"


def made(kind: Any, says: str, **settings: Any) -> Refused:
    return partial(kind, **settings), says


RED = dict.fromkeys(SPACES, "red")
COMPILED = {"engine": "compiled", "compile": "default"}
A_LEAGUE = {"self_play": mc.SelfPlayConfig(pool=1, roles={"main": "main"}), "cluster": mc.ClusterConfig("auto")}
RAMP = {"stages": (5,), "stage_names": ("ramp",), "replay": mc.ReplayConfig(clear_at_stage=("rmp",))}
NO_PROBABILITIES = 1.5, -0.1, "linear(0.5, 2, 10)", "piecewise([(0, 0.5), (5, 2), (9, 0.5)])"
NO_SCHEDULE = "epsilon: expected a number, a schedule or a function"
REFUSED: dict[str, Refused] = {
    "no name": assigned("expected the name of a policy for agent_0, got 3", lambda agent: 3, error=TypeError),
    "no algorithm": assigned("for each policy, got none for 'agent_1'", None, {"agent_0": "dqn"}),
    "spaces": assigned("expected agents of one policy to have equal spaces", RED, agent_1=OTHER),
    "long name": assigned("policies: expected at most 64 bytes of UTF-8", {**RED, "agent_1": "x" * 100}),
    "lone surrogate": assigned("policies: expected at most 64 bytes of UTF-8, got", {**RED, "agent_1": "a\ud800"}),
    "no gate": self_play("admit_updates: expected a number, or an admit_win_rate, got None", admit_updates=None),
    "shares": self_play("anchors: expected shares that sum to at most 1 with `latest`, got 1.05", latest=0.9),
    "anchor": self_play("anchors: expected module:name of an importable object, or a checkp", anchors={"weak": 0.1}),
    "equal names": self_play("anchors: expected names that differ in their la", anchors={"a:weak": 0.1, "b:weak": 0.1}),
    "share": self_play("anchors arena:weak: expected a probability, got -0.1 from", anchors={"arena:weak": -0.1}),
    "draw": self_play("draw: expected uniform, recent, pfsp, variance, rating, or module:name of a fu", draw="best"),
    "no league": self_play("roles: expected {} without a pool, got {'main': 'main'}", pool=0, roles={"main": "main"}),
    "anchors alone": self_play("anchors: expected {} without a pool, got {'arena:weak': ", pool=0),
    "a side alone": self_play("side: expected both without a pool, got 'left'", pool=0, anchors={}, side="left"),
    "no main policy": self_play("roles: expected a policy of the role main, got", roles={"a": "main_exploiter"}),
    "a role": self_play("league_exploiter for 'a', got 'mainn'; did you mean main?", roles={"a": "mainn"}),
    "a league on a cluster": made(mc.Config, "self_play.roles: expected none", **A_LEAGUE),
    "shares at the end": self_play("at most 1 with `latest`, got 1.15", latest="linear(0, 1, 100)"),
    **{
        name: self_play(f"{name}: expected None without anchors, got {value}", anchors={}, **{name: value})
        for name, value in {"begin_win_rate": 0.5, "begin_step": 10, "rollback": 0.2}.items()
    },
    "power": self_play("power: expected a finite number of at least 0, got -1.0", power=-1.0),
    "few arguments": schedule(
        "exponential(1)", "expected exponential(start, end, rate, every=1, of='steps'), got 'exp"
    ),
    "unknown schedule": schedule("line(1, 2)", "epsilon: expected a number or one of constant(...)"),
    "range": schedule("linear(1, 2, 0)", "epsilon: linear over: expected a finite number of at least 1, got 0"),
    "a call": schedule("linear(1, inf(), 3)", "epsilon: expected linear(start, end, over, of='steps'), got"),
    "rate": schedule("exponential(1, 0.1, -0.5)", "exponential rate: expected a finite number above 0, got -0.5"),
    "points": schedule("piecewise([(5, 1), (5, 2)])", "ascending counts"),
    "points between counts": schedule("piecewise([(1.5, 1)])", "expected pairs of a count and a value, got [(1.5, 1)]"),
    "unit": schedule("linear(1, 2, 3, of=days)", "of: expected steps or updates, got 'days'"),
    "no function": schedule("custom(nowhere:f)", "epsilon: expected something that can be imported"),
    **{f"{value}": schedule(value, NO_SCHEDULE, TypeError) for value in (None, True, [1.0])},
    "text returned": made(ExplorationConfig, "at 0: expected a finite number, got", epsilon=lambda count: "much"),
    "None returned": made(ExplorationConfig, "at 0: expected a finite number, got", epsilon=lambda count: None),
    "NaN returned": made(ExplorationConfig, "at 0: expected a finite number, got", epsilon=lambda count: math.nan),
    **{f"epsilon {n}": made(ExplorationConfig, "epsilon: expected a probability", epsilon=n) for n in NO_PROBABILITIES},
    "descending stages": made(mc.Config, "stages: expected ascending counts of at", stages=(30, 10)),
    "text as stages": made(mc.Config, "stages: expected counts, got '123'", stages="123"),
    "no such stage": made(mc.Config, "expected names of ('ramp',), got 'rmp'; did you mean ramp?", **RAMP),
    "one name": made(mc.Config, "stage_names: expected 2 names of stages", stages=(5, 9), stage_names=("ramp",)),
    "a name twice": made(mc.Config, "expected each name once, got ('a', 'a')", stages=(5, 9), stage_names=("a", "a")),
    "numbers as names": made(mc.ReplayConfig, "clear_at_stage: expected True, False or a t", clear_at_stage=(1,)),
    "two compilers": made(mc.LearnerConfig, "compile: expected off when engine is compiled", **COMPILED),
    "a misspelt name": (partial(mc.Config, total_step=5), TypeError, "'total_step'; did you mean total_steps?"),
    "a section's name": (partial(mc.Config, batch_size=4), TypeError, "'batch_size'; did you mean learner.batch_size?"),
    "a long name": (partial(mc.Config(ratios={"x" * 9999: 1}).check_policies, ["a"]), "policies ['a'], got 'xx"),
    "sinks": (partial(mc.MetricsConfig, sinks=3), TypeError, "sinks: expected names of sinks, got 3"),
    "a learner": (partial(mc.Config, learners={"a": 3}), TypeError, "a LearnerConfig for 'a', got 3"),
    "a section": (partial(mc.Config.from_dict, {"learners": {"a": 3}}), "learners.a: expected settings by name, got 3"),
    **{f"{value!r} updates a step": ratio(value) for value in (0, -0.1, math.nan, "much", True)},
    "a schedule that ends at no update": ratio("linear(1, 0, 10)", " from 1e-06 to 1e+06, got 0"),
    "a function of updates a step": ratio(math.sqrt, " or a schedule other than a function, got <built-in"),
    "text of such a function": ratio("custom(nowhere:f)", " or a schedule other than a function, got 'custom("),
    "no ratio in serial mode": ratio(None, " in serial mode, got None"),
}


test_wrong_settings_and_assignments_are_refused = refusals(REFUSED)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_vector_environment_has_its_own_number_of_copies(copies: int) -> None:
    vector = partial(gymnasium.make_vec, CARTPOLE, copies)
    for make, envs in {vector: copies, CARTPOLE_ALONE: mc.ActorConfig().envs}.items():
        assert Launch.checked(make, "dqn").spec.config.actor.envs == envs


def test_an_environments_own_number_of_frames_is_stacked() -> None:
    """An attribute `stack` that is no number is ignored."""
    classes = [type("Stacking", (Corridor,), {"stack": own}) for own in (3, Corridor.reset)]
    assert [Launch.checked(each, "dqn").spec.config.replay.stack for each in classes] == [3, 1]


def test_a_checked_run_is_pickled_as_it_is() -> None:
    spec = Launch.checked("gymnasium:CartPole-v1", "dqn").spec
    assert pickle.loads(pickle.dumps(spec)) == spec and spec.config.learner_of(spec.names[0]).gamma == 0.99


def test_a_run_of_one_step_is_too_short_to_learn(caplog: pytest.LogCaptureFixture) -> None:
    Launch.checked(CARTPOLE_ALONE, "dqn", mc.Config(total_steps=1))
    assert "takes 1 of the 1 steps, fewer than the" in caplog.text


def test_texts_that_are_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    space = Dict({"place": Corridor.observation_space, "note": Text(3)})
    Launch.checked(type("Noting", (Corridor,), {"observation_space": space}), "dqn", progress=True)
    assert "observations: left out note, since networks take no texts" in capsys.readouterr().err


def test_settings_come_back_from_json() -> None:
    learners = MappingProxyType({"a": mc.LearnerConfig(gamma=0.5)})
    league = mc.SelfPlayConfig(pool=4, anchors={weak: 0.15})
    replay, pace = mc.ReplayConfig(mixture={"anchor": 0.5, "pool": 0.5}), "linear(0.1, 1, 100)"
    config = mc.Config(learners=learners, updates_per_step=pace, self_play=league, replay=replay)
    assert mc.Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.self_play.anchors == {"arena:weak": mc.Constant(0.15)}
    assert mc.Config().exploration.epsilon is None
    assert mc.Config().supervision.serial_fallback and not mc.Config().replay.clear_at_stage
    assert mc.Config.from_dict(mc.Config().to_dict()) == mc.Config()


@pytest.mark.parametrize(
    "metric, is_so",
    [
        ("eval_return", True),
        ("a/eval_return", True),
        ("info/eval_score", False),
        ("a/info/eval_x", False),
        ("eval_win_rate/info", True),
        ("a/eval_return/pool", True),
        ("eval_bot/eval_return", True),
        ("eval_bot/loss", False),
    ],
)
def test_which_metrics_are_of_evaluations(metric: str, is_so: bool) -> None:
    assert mc.StopConfig(metric=metric).of_evaluation is is_so


@pytest.mark.parametrize(
    "metric, window",
    [
        ("episode_return", 100),
        ("a/episode_length", 100),
        ("info/score", 100),
        ("a/info/score", 100),
        ("informer/loss", 1),
        ("episode_bot/loss", 1),
    ],
)
def test_only_metrics_of_episodes_are_means_of_a_hundred(metric: str, window: int) -> None:
    assert mc.StopConfig(metric=metric).values == window
