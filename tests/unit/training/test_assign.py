"""Which agents share a policy, and what is refused before a run starts."""

from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete
from refused import Refused, check_refused

import marlcore as mc
from marlcore.spaces import Spaces
from marlcore.training.config import assign
from marlcore.training.self_play import policies_in_self_play

SPACES = {f"agent_{i}": Spaces(Box(-1, 1, (3,)), Discrete(2)) for i in range(3)}
OTHER = Spaces(Box(-1, 1, (4,)), Discrete(2))


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


def test_self_play_takes_a_function_as_policies() -> None:
    config = mc.Config(policies=lambda agent: "player")
    assert policies_in_self_play(config, ("red", "blue")) == {"red": "player", "blue": "player"}


def case(error: type[Exception], says: str, policies: Any, algorithm: Any = "dqn", **spaces: Spaces) -> Refused:
    return lambda: assign(SPACES | spaces, policies, algorithm, 1), error, says


def red(name: str = "red", **others: str) -> dict[str, str]:
    return dict.fromkeys(SPACES, name) | others


REFUSED: dict[str, Refused] = {
    "unknown agent": case(ValueError, "got 'agent_9'; did you mean agent_", red(agent_9="red")),
    "no policy": case(ValueError, "expected a policy for each agent, got none for 'agent_1'", {"agent_0": "red"}),
    "no name": case(TypeError, "expected the name of a policy for agent_0, got 3", lambda agent: 3),
    "unknown policy": case(ValueError, "algorithm: expected the policies ['red'], got 'rad'", red(), {"rad": "dqn"}),
    "no algorithm": case(ValueError, "for each policy, got none for 'agent_1'", None, {"agent_0": "dqn"}),
    "class": case(
        TypeError, "expected an Algorithm, such as marlcore.DQN(), or its name, got the class DQN", None, mc.DQN
    ),
    "spaces": case(ValueError, "expected agents of one policy to have equal spaces", red(), agent_1=OTHER),
    "long name": case(ValueError, "policies: expected at most 64 bytes of UTF-8", red("x" * 100)),
    "lone surrogate": case(ValueError, "policies: expected at most 64 bytes of UTF-8, got", red("a\ud800")),
    "two policies in self-play": (
        lambda: policies_in_self_play(mc.Config(policies=str.upper), ("red", "blue")),
        ValueError,
        "self_play: expected one policy for both agents",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_assignment_is_refused(name: str) -> None:
    check_refused(*REFUSED[name])
