"""The pages of the algorithms: one each, and a table that is true. test_page_programs.py runs their examples."""

import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from crowd import Rounds
from gymnasium import spaces as gym
from puck import two_player_puck
from whole_runs import Runs

import marlcore as mc
from marlcore.algos import ALGORITHMS
from marlcore.envs import team as team_envs
from marlcore.replay import Hindsight, Prioritized

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
OBS = gym.Box(-1, 1, (3,), np.float32)
ACTIONS: dict[str, gymnasium.Space[Any]] = {
    "Discrete": gym.Discrete(3),
    "MultiDiscrete": gym.MultiDiscrete([3, 2]),
    "MultiBinary": gym.MultiBinary(3),
    "bounded Box": gym.Box(-2, 2, (2,), np.float32),
    "unbounded Box": gym.Box(-np.inf, np.inf, (2,), np.float32),
}
EVERYTHING = mc.ReplaySource(3, Prioritized(), hindsight=Hindsight(compute_reward=np.where))
# Smaller than by default, so that a few hundred steps are enough.
ON_POLICY = {"batch_size": 128, "minibatch_size": 128, "epochs": 1}
SMALL: dict[str, Any] = dict.fromkeys(("coma", "happo", "mappo", "ppo", "recurrentppo"), ON_POLICY)
SMALL["r2d2"] = {"units": 8, "length": 8, "burn_in": 2, "period": 4}


def page_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


def claims() -> dict[str, dict[str, str]]:
    """The cells of the overview's table, by algorithm and row."""
    (table,) = re.findall(r"^## Which algorithm takes what\n\n(.*?)\n\n", page_of("index"), re.M | re.S)
    head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.split("\n")]
    algorithms = re.findall(r"\[(\w+)\]\(\1\.md\)", " ".join(head))
    return {name: {row[0]: row[1:][at] for row in rows} for at, name in enumerate(algorithms)}


class Two(Rounds):
    possible_agents = ("a", "b")

    def __init__(self, action: gymnasium.Space[Any]) -> None:
        self.see, self.do = OBS, action


def spaces_for(algorithm: Any, action: gymnasium.Space[Any], masked: bool = False) -> mc.Spaces:
    """The spaces of an agent, or of a team of two. Raises ValueError: such a team cannot exist."""
    if not algorithm.wants_team:
        return mc.Spaces(OBS, action, masked)
    team = team_envs.TeamEnvironment(Two(action), {"team": ("a", "b")})
    return mc.Spaces(team.observation_space("team"), team.action_space("team"), masked)


def takes(algorithm: Any, action: gymnasium.Space[Any], masked: bool = False) -> bool:
    with suppress(ValueError):
        return bool(algorithm.transition(spaces_for(algorithm, action, masked)))
    return False


def facts(algorithm: Any) -> dict[str, str]:
    """The rows of the overview that follow from the code without a run."""
    found = {name: takes(algorithm, space) for name, space in ACTIONS.items()}
    space = next(space for name, space in ACTIONS.items() if found[name])
    source = algorithm.source(EVERYTHING)
    replay = isinstance(source, mc.ReplaySource)
    rewards = replay and not getattr(algorithm, "imitates", False)
    choices = [ACTIONS[name] for name in ("Discrete", "MultiDiscrete") if found[name]]
    found |= {
        "masks": bool(choices) and all(takes(algorithm, action, masked=True) for action in choices),
        "memory": "previous_reward" in algorithm.transition(spaces_for(algorithm, space)).extras,
        "priorities": replay and source.prioritized is not None,
        "n-step": rewards,
        "sequences": (windows := replay and source.sequence is not None),
        # A team's observations have no goals
        "hindsight": rewards and not windows and source.hindsight is not None and not algorithm.wants_team,
        "recorded data": replay,
    }
    words = {name: "yes" if value else "-" for name, value in found.items()}
    if rewards and source.n_step != 3:
        words["n-step"] = "own"
    if getattr(algorithm, "cell", "") is None:
        recurrent = facts(replace(algorithm, cell="gru"))
        words |= {name: "option" for name in ("memory", "sequences") if recurrent[name] != words[name]}
    if replay and not rewards:
        words["recorded data"] = "only"
    return words


def test_every_algorithm_has_a_page_in_the_overview() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*ALGORITHMS, "index"}
    assert f"[{len(ALGORITHMS)} algorithms](docs/algorithms/index.md)" in (FOLDER.parents[1] / "README.md").read_text()
    assert sorted(ALGORITHMS) == [*claims()]
    for name in ALGORITHMS:
        assert page_of(name).rpartition("\n## ")[2].startswith("Parameters\n")  # the site adds their table


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_overview_says_what_the_code_says(name: str) -> None:
    found = facts(ALGORITHMS[name]())
    told = claims()[name]
    assert {row: told[row] for row in found} == found
    assert told.keys() - found.keys() == {"shared policy", "self-play"}


PLAY = {"pool": 3, "admit_updates": 5}
runs = Runs(total_steps=400, actor=mc.ActorConfig(envs=4), learner=mc.LearnerConfig(device="cpu"))


@pytest.mark.long
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_overview_is_right_about_several_agents(tmp_path: Path, name: str) -> None:
    """In self-play both agents share a policy. Algorithms of recorded data support no self-play."""
    told = claims()[name]
    env_fn = partial(two_player_puck, told["Discrete"] == "yes")
    kind: Any = ALGORITHMS[name]
    algorithm = kind(**SMALL.get(name, {}))
    assert told["shared policy"] == "yes"
    if told["recorded data"] == "only":
        assert told["self-play"] == "-"
        with pytest.raises(ValueError, match=r"^algorithm: expected an algorithm that uses rewards"):
            runs.train(tmp_path, env_fn, algorithm, self_play=PLAY)
        assert imitated_by_both(tmp_path, env_fn, algorithm).updates == {"both": 20}
        return
    assert told["self-play"] == "yes"
    learner = {"warmup": 100, "batch_size": 8} if told["priorities"] == "yes" else {}
    teams = {agent: f"team of {agent}" for agent in env_fn().possible_agents} if kind.wants_team else None
    assert runs.train(tmp_path, env_fn, algorithm, learner=learner, self_play=PLAY, teams=teams).updates["main"] > 0


def imitated_by_both(folder: Path, env_fn: Any, algorithm: Any) -> mc.Result:
    env = env_fn()
    agents = env.possible_agents
    spaces = mc.Spaces(env.observation_space(agents[0]), env.action_space(agents[0]))
    config = mc.Config(mode="serial", run_dir=str(folder / "run"), policies=dict.fromkeys(agents, "both"))
    with mc.ReplayBuffer.create(algorithm.transition(spaces), 100) as replay:
        with replay.writer() as writer:
            for _ in range(50):
                writer.add(np.zeros(spaces.observation.shape), 0, 0.0, terminated=True)
        return mc.train_offline(replay, algorithm, 20, env_fn, config, progress=False)
