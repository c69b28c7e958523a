"""Which agents share a policy, and what is refused before a run starts."""

import re
from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete

import marlcore as mc
from marlcore.spaces import Spaces
from marlcore.training.config.policies import assign
from marlcore.training.self_play.start import policies_in_self_play

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


ALL_RED = dict.fromkeys(SPACES, "red")
REFUSED: dict[str, tuple[Any, Any, Any, str]] = {
    "unknown agent": (SPACES, ALL_RED | {"agent_9": "red"}, "dqn", "policies: .*got 'agent_9'; did you mean agent_"),
    "no policy": (SPACES, {"agent_0": "red"}, "dqn", "expected a policy for each agent, got none for 'agent_1'"),
    "no name": (SPACES, lambda agent: 3, "dqn", "expected the name of a policy for agent_0, got 3"),
    "unknown policy": (SPACES, ALL_RED, {"rad": "dqn"}, r"algorithm: expected the policies \['red'\], got 'rad'"),
    "no algorithm": (SPACES, None, {"agent_0": "dqn"}, "expected one for each policy, got none for 'agent_1'"),
    "class": (SPACES, None, mc.DQN, "expected an Algorithm, such as marlcore.DQN.., or its name, got the class DQN"),
    "spaces": (SPACES | {"agent_1": OTHER}, ALL_RED, "dqn", "expected agents of one policy to have equal spaces"),
    "long name": (SPACES, dict.fromkeys(SPACES, "x" * 100), "dqn", "policies: expected at most 64 bytes of UTF-8"),
    "lone surrogate": (
        SPACES,
        dict.fromkeys(SPACES, "a\ud800"),
        "dqn",
        "policies: expected at most 64 bytes of UTF-8, got",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_assignment_is_refused_in_one_line(case: str) -> None:
    spaces, policies, algorithm, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError)) as error:
        assign(spaces, policies, algorithm, 1)
    assert re.search(message, str(error.value)) and "\n" not in str(error.value)


def test_self_play_takes_a_function_as_policies() -> None:
    config = mc.Config(policies=lambda agent: "player")
    assert policies_in_self_play(config, ("red", "blue")) == {"red": "player", "blue": "player"}
    with pytest.raises(ValueError, match="self_play: expected one policy for both agents"):
        policies_in_self_play(mc.Config(policies=str.upper), ("red", "blue"))
