"""Actors give transitions the priority that a plain loop over one episode gives them."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from batches import acted
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from rounding import rounding

import marlcore as mc
from marlcore.envs import vectorize
from marlcore.loops import Collector, FirstPriorities, Recorder, act, observe
from marlcore.spec import Field
from marlcore.testing import checked
from marlcore.transitions import HeldRows

SPEC = mc.TransitionSpec(Field((4,), "int64"), Field((), "int64"), {"priority": Field()})
DISCOUNT = 0.9


def taken(obs: NDArray[Any]) -> NDArray[np.float64]:
    return obs[:, 1] * 3.0 - obs[:, 0] % 7


def best(obs: NDArray[Any]) -> NDArray[np.float64]:
    return obs[:, 1] * 5.0 + obs[:, 0] % 11


class Player:
    """Values that depend on nothing but the observation."""

    state_before: ClassVar[dict[str, Any]] = {}

    def reward(self, reward: Any, at: Any) -> None:
        pass

    def choose(self, obs: Any, at: Any, begins: Any) -> mc.Action:
        unknown = {"priority": np.full(len(obs), np.nan, np.float32)}
        return mc.Action(obs[:, 1] % 4, unknown, values={"taken": taken(obs), "best": best(obs)})


def first_priority(before: Any, reward: Any, after: Any) -> Any:
    return mc.DQN(reward_scale=0.5).first_priority(before, reward, DISCOUNT, after)


def collector(agent: str, writer: Any, first: Any = first_priority) -> Collector:
    lanes, weights = np.array(writer.lanes), SimpleNamespace(version=3, pull_if_due=lambda rounds: None)
    recorder = Recorder(agent, HeldRows(writer, len(lanes)), SPEC, lanes)
    return Collector(Player(), weights, recorder, first and FirstPriorities(recorder, first))  # type: ignore[arg-type]


def test_priorities_are_those_of_a_loop_over_each_episode() -> None:
    env = vectorize(checked.CheckedEnvironment, 3)
    run: Any = SimpleNamespace(
        rounds=0,
        episodes=0,
        ended=np.zeros(3, int),
        **dict.fromkeys(["begin", "report_ended", "count_steps"], lambda _: None),
    )
    with mc.ReplayBuffer.create(SPEC, 6000, lanes=6) as replay, ExitStack() as stack:
        writers = [stack.enter_context(replay.vector_writer([i, i + 1, i + 2])) for i in (0, 3)]
        collectors = {agent: collector(agent, writer) for agent, writer in zip(env.agents, writers, strict=True)}
        env.reset(5)
        for _ in range(1500):
            act(env, collectors, observe(env, collectors, run), run)
        batch = replay.sampler(4000, seed=0, gamma=DISCOUNT).sample()
        assert (batch.policy_version == 3).all()
        future = np.where(batch.terminated, 0.0, best(batch.next_obs))
        expected = np.abs(0.5 * batch.reward + DISCOUNT * future - taken(batch.obs))
        expected[batch.truncated] = np.nan
        np.testing.assert_allclose(batch.extras["priority"], expected, rtol=1e-6)
        assert batch.terminated.any() and batch.truncated.any() and not (batch.terminated & batch.truncated).any()
        goes_on = ~batch.terminated & ~batch.truncated
        assert (batch.next_obs[goes_on, :2] == batch.obs[goes_on, :2] + [0, 1]).all(), "the episode's next step"
        assert (batch.action == batch.obs[:, 1] % 4).all() and len(set(batch.index.tolist())) > 1500


ONLY = np.arange(1)  # the copies of an environment


def act_once(collected: Collector, obs: int, begins: bool, terminated: bool | None) -> None:
    """An action in the only copy, and its outcome unless this never comes."""
    collected.act(mc.Turn("a", ONLY, np.full((1, 4), obs), np.array([begins])))
    if terminated is not None:
        collected.record(mc.Outcome("a", ONLY, np.ones(1), np.array([terminated]), np.zeros(1, bool), None))


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("first", [None, first_priority])
def test_no_transition_spans_an_action_whose_outcome_never_came(first: Any, ended: bool) -> None:
    """The episode may end for all between two turns, so that no outcome ends it for this agent."""
    with mc.ReplayBuffer.create(SPEC, 100) as replay, replay.vector_writer([0]) as writer:
        collected = collector("a", writer, first)
        assert collected.begin(ONLY) == 0
        act_once(collected, 1, True, terminated=False)
        if not ended:
            act_once(collected, 2, False, terminated=None)
        assert collected.begin(ONLY) == (not ended)
        act_once(collected, 3, True, terminated=True)
        assert len(replay) == 2 and (replay.sampler(20, min_size=1).sample().obs == 3).all()


@pytest.mark.parametrize("algorithm", [mc.DQN(actor_priorities=True), mc.IQN(actor_priorities=True)])
def test_the_values_of_an_action_are_the_networks(algorithm: Any) -> None:
    spaces = mc.Spaces(Box(-1, 1, (3,)), Discrete(5))
    model, obs = algorithm.make_model(spaces), torch.randn(40, 3)
    chosen = acted(algorithm, model, obs, explore={"epsilon": 0.5})
    with torch.no_grad():
        values = model(obs).numpy()
    close = rounding(300, 10.0)  # layers of 128, 64 and, of IQN, 64 cosines
    np.testing.assert_allclose(chosen.values["best"], values.max(1), **close)
    np.testing.assert_allclose(chosen.values["taken"], values[np.arange(40), chosen.action], **close)
    assert (chosen.action != values.argmax(1)).any()
    assert algorithm.transition(spaces).extras == {"priority": Field()}
    chosen_source = algorithm.source(mc.ReplaySource(3, mc.Prioritized(0.7)))
    assert chosen_source.prioritized == mc.Prioritized(0.7, initial="priority")
