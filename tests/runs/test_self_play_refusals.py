"""What cannot be trained by self-play is refused in one line, before processes start."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from arena import Arena, Marking
from crowd import Crowd
from refusals import refused

import marlcore as mc
from marlcore.training import read_metrics
from marlcore.training.record.checkpoints import save_checkpoint

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CONFIG = mc.Config(
    total_steps=400,
    actor=mc.ActorConfig(envs=2),
    learner=mc.LearnerConfig(batch_size=8, warmup=20, n_step=1, device="cpu"),
    self_play=mc.SelfPlayConfig(pool=4, admit_updates=10),
)
not_callable = 5


def rogue(obs: Any) -> int:
    return 7


def train(tmp_path: Path, env_fn: Any, algorithm: Any = "dqn", **changes: Any) -> mc.Result:
    config = replace(CONFIG, run_dir=str(tmp_path / "run"), **changes)
    return mc.train(env_fn, algorithm, config, progress=False)


def anchored(reference: str) -> dict[str, Any]:
    return {"self_play": replace(CONFIG.self_play, anchors={reference: 0.5})}


BEFORE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an environment of one player": (
        "gymnasium:CartPole-v1", {}, "self_play: expected an environment of two agents, got ['agent_0']",
    ),
    "an environment of three": (
        partial(Crowd, 3), {},
        "self_play: expected an environment of two agents, got ['agent_0', 'agent_1', 'agent_2']",
    ),
    "two policies": (
        partial(Crowd, 2), {"policies": {"agent_0": "a", "agent_1": "b"}},
        "self_play: expected one policy for both agents, got {'agent_0': 'a', 'agent_1': 'b'}",
    ),
    "an unknown side": (
        partial(Crowd, 2), {"self_play": replace(CONFIG.self_play, side="agent_2")},
        "self_play.side: expected both or one of ['agent_0', 'agent_1'], got 'agent_2'",
    ),
    "an anchor that does not exist": (
        partial(Crowd, 2), anchored("arena:strong"),
        "self_play.anchors: expected something that can be imported, got 'arena:strong' "
        "(AttributeError: module 'arena' has no attribute 'strong')",
    ),
    "an anchor that is no function": (
        partial(Crowd, 2), anchored("test_self_play_refusals:not_callable"),
        "anchor:not_callable: expected a function of an observation, or a class or object with a method act(obs), "
        "got 5",
    ),
    "a class without act": (
        partial(Crowd, 2), anchored("crowd:Crowd"),
        "anchor:Crowd: expected a class with a method act(obs), got <class 'crowd.Crowd'>",
    ),
    "a checkpoint that does not exist": (
        partial(Crowd, 2), anchored("/nowhere/main.pt"),
        "self_play.anchors: expected a checkpoint, got '/nowhere/main.pt', which does not exist",
    ),
    "a mixture without a part for the pool": (
        partial(Crowd, 2), {"replay": mc.ReplayConfig(mixture={"anchor": 0.5, "boss": 0.5})},
        "self_play: tag: expected one of ['anchor', 'boss'], as replay.mixture has them, got 'pool:latest'",
    ),
    "a mixture without a part for an anchor": (
        partial(Arena, Path()), {"replay": mc.ReplayConfig(mixture={"pool": 1.0}), **anchored("arena:weak")},
        "self_play: tag: expected one of ['pool'], as replay.mixture has them, got 'anchor:weak'",
    ),
    "evaluations too short for all opponents": (
        partial(Arena, Path()), {"evaluation": mc.EvaluationConfig(100, episodes=3), **anchored("arena:weak")},
        "evaluation.episodes: expected at least 4, one on each side against each anchor and the pool, got 3",
    ),
    "lanes too short for parts": (
        partial(Crowd, 2), {"replay": mc.ReplayConfig(capacity=23, mixture={"pool": 0.5, "anchor": 0.5})},
        "learner.warmup: expected at most the 16 rows that replay.capacity gives a replay, got 20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BEFORE)
def test_what_self_play_cannot_use_is_refused_before_it_starts(tmp_path: Path, case: str) -> None:
    env_fn, changes, message = BEFORE[case]
    algorithm: Any = Marking() if "Arena" in repr(env_fn) else "dqn"
    with refused((ValueError, TypeError), message):
        train(tmp_path, env_fn, algorithm, **changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shares", [{"pool": 0.5}, {"pool": 1.5, "anchor": -0.5}, {"pool": "all"}])
def test_shares_of_parts_must_sum_to_one(shares: Any) -> None:
    with refused(ValueError, f"mixture: expected numbers of at least 0 whose sum is 1, got {shares}"):
        mc.ReplayConfig(mixture=shares)


def test_an_action_outside_the_space_names_its_anchor(tmp_path: Path) -> None:
    settings = replace(CONFIG.self_play, anchors={rogue: 1.0}, latest=0.0)
    with pytest.raises(mc.WorkerFailed) as caught:
        train(tmp_path, partial(Crowd, 2), mode="serial", self_play=settings)
    last = caught.value.traceback.strip().splitlines()[-1]
    assert last == "ValueError: action of anchor:rogue: expected one of Discrete(2), got 7"


def test_an_opponent_of_another_network_is_refused(tmp_path: Path) -> None:
    """As an anchor, and among a resumed run's opponents, which stay as they are."""
    result = train(tmp_path, partial(Arena, tmp_path), Marking(), mode="serial")
    saved = result.run_dir / "checkpoints" / "main.opponent-2.pt"
    settings = replace(CONFIG.self_play, anchors={str(saved): 0.5})
    with pytest.raises(
        ValueError, match=r"^self_play.anchors: expected a checkpoint of main's network, got .*mark"
    ) as caught:
        train(tmp_path / "other", partial(Arena, tmp_path), Marking(2), self_play=settings)
    assert "\n" not in str(caught.value) and not (tmp_path / "other").exists()
    state = torch.load(saved, weights_only=True)
    state["acting"]["model.mark"] = torch.zeros(2)
    save_checkpoint(saved, state)
    config = replace(CONFIG, mode="serial", total_steps=800)
    with pytest.raises(
        ValueError, match=r"^resume: expected an opponent of main's network, got .*opponent-2.pt"
    ) as caught:
        mc.train(partial(Arena, tmp_path), Marking(), config, resume=result.run_dir, progress=False)
    assert "\n" not in str(caught.value)
    assert torch.load(saved, weights_only=True)["acting"]["model.mark"].shape == (2,)


def test_a_run_is_resumed_with_its_anchors_its_parts_and_its_best(tmp_path: Path) -> None:
    replay = mc.ReplayConfig(mixture={"anchor": 0.5, "pool": 0.5})
    evaluation = mc.EvaluationConfig(interval=200, episodes=4)
    config = replace(
        CONFIG, mode="serial", run_dir=str(tmp_path / "run"), replay=replay, evaluation=evaluation,
        **anchored("arena:weak"),
    )  # fmt: skip
    mc.train(partial(Arena, tmp_path), Marking(), config, progress=False)
    assert {"eval_return/anchor:weak", "eval_return/pool"} < evaluated(tmp_path / "run").keys()
    more = replace(config, total_steps=800)
    had = "as the run had it, got"
    for changes, expected in (
        (anchored("arena:Counted"), f"self_play.anchors {{'arena:weak': 0.5}}, {had} {{'arena:Counted': 0.5}}"),
        ({"replay": mc.ReplayConfig()}, f"replay.mixture {{'anchor': 0.5, 'pool': 0.5}}, {had} {{}}"),
    ):
        with refused(ValueError, f"resume: expected {expected}"):
            mc.train(partial(Arena, tmp_path), Marking(), replace(more, **changes), resume=tmp_path / "run")
    assert mc.train(partial(Arena, tmp_path), Marking(), more, resume=tmp_path / "run", progress=False).steps >= 800
    newest = evaluated(tmp_path / "run")
    assert newest["eval_return"] == 1.0 and newest["eval_return_of_best"] <= 1.0


def evaluated(run_dir: Path) -> dict[str, float]:
    """The newest value of each of the policy's metrics."""
    return {one.name: one.value for one in read_metrics(run_dir / "metrics.csv") if one.agent == "main"}
