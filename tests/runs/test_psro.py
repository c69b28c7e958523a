"""Policy-space response oracles: their mixtures, tables and files, and what a killed one leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from chances import OneShot
from crowd import Contest, RockPaperScissors
from kuhn_poker import KuhnPoker
from refused import Refused, refusals, refused
from whole_runs import LONG, SMALL, changed, config_of

import marlcore as mc
from marlcore.meta import Population
from marlcore.meta.against import Against
from marlcore.meta.result import add_policies, read_into, write_result

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

GAME = mc.NamedEnvironment("pettingzoo:classic.rps_v2", {"max_cycles": 1})
UNSEEN = 3  # the observation, as the other player has not moved
DQN = mc.DQN(hidden=(16,), learning_rate=1e-2, reward_scale=1.0)


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[mc.psro.__module__], "plot_result", lambda *_: None)


def settings(folder: Path, **changes: Any) -> mc.Config:
    usual: Any = {"actor": {"envs": 8}, "learner": {"n_step": 1}, "exploration": {"epsilon": 0.5}}
    config = changed(SMALL, total_steps=400, updates_per_step=0.4, run_dir=str(folder), **usual)
    return changed(config, **changes)


def respond(folder: Path, iterations: int = 3, **options: Any) -> mc.PSROResult:
    options = {"games": 8, "min_gain": None, "progress": False, **options}
    return mc.psro(GAME, DQN, settings(folder), iterations=iterations, **options)


def moves(result: mc.PSROResult) -> np.ndarray:
    """The mixture of rock, paper and scissors."""
    return np.bincount([policy.act(UNSEEN) for policy in result.policies], result.mixture, 3)


class Pennies(RockPaperScissors):
    """Matching pennies with unequal stakes, whose second player has a third move that only costs."""

    payoffs = np.array([[3.0, -1, 2], [-1, 1, 2]])
    equilibrium = (np.array([1, 2]) / 3, np.array([1, 2, 0]) / 3)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(2 if agent == "row" else 3)

    def step(self, actions: dict[str, int]) -> Any:
        looked, _, *rest = super().step(actions)
        paid = float(self.payoffs[actions["row"], actions["column"]])
        return looked, {"row": paid, "column": -paid}, *rest


def pennies(folder: Path, iterations: int = 6, env_fn: Any = Pennies, **options: Any) -> mc.PSROResult:
    options = {"games": 8, "min_gain": 0.01, "progress": False, **options}
    dqn, config = replace(DQN, reward_scale=0.25), settings(folder, total_steps=200)
    return mc.psro(env_fn, dqn, config, iterations=iterations, **options)


def strategies(result: mc.PSROResult) -> list[np.ndarray]:
    """The mixtures of moves of both players."""
    pairs = zip(result.populations, Pennies.payoffs.shape, strict=True)
    return [np.bincount(moves_of(one), one.mixture, moves) for one, moves in pairs]


def moves_of(population: Any) -> list[int]:
    return [policy.act(np.zeros(1, np.float32)) for policy in population.policies]


@LONG
def test_two_populations_reach_the_equilibrium(tmp_path: Path) -> None:
    """It ends when neither finds a better response, goes on from its files, and its mixtures earn the game's value."""
    first = pennies(tmp_path, iterations=1)
    result = pennies(tmp_path, resume=tmp_path)
    opponent = result.opponent
    assert opponent is not None
    np.testing.assert_equal(first.gains, result.gains[:1])
    for found, expected in zip(strategies(result), Pennies.equilibrium, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    gains = np.maximum(np.array(result.gains), np.array(opponent.gains))[:, 0]
    assert (gains[:-1] >= 0.01).all() and abs(gains[-1]) < 1e-6
    np.testing.assert_array_equal(result.payoffs, Pennies.payoffs[np.ix_(moves_of(result), moves_of(opponent))])
    players = {"row": result.player(), "column": opponent.player()}  # whose draws differ
    assert mc.evaluate(tmp_path, 400, policies=players).mean["row"] == pytest.approx(1 / 3, abs=0.25)


@LONG
def test_two_uniform_populations_are_exploited(tmp_path: Path) -> None:
    """The control, with the same responses; the games that continue are of another number of populations."""
    row, column = strategies(pennies(tmp_path, 2, meta_solver="uniform", min_gain=None))
    assert (Pennies.payoffs @ column).max() - (row @ Pennies.payoffs).min() > 0.5
    with refused(ValueError, "resume: expected a psro of 1 populations, got 2"):
        psro(folder=str(tmp_path), resume=tmp_path)


class Generous(Pennies):
    """What it pays does not sum to 0."""

    def step(self, actions: dict[str, int]) -> Any:
        looked, paid, *rest = super().step(actions)
        return looked, {agent: earned + 1 for agent, earned in paid.items()}, *rest


@pytest.mark.usefixtures("unplotted")
def test_a_psro_that_ended_in_its_first_games_continues(tmp_path: Path) -> None:
    """It keeps a directory that was there; its own is removed. Each agent meets the other's policies by shares."""
    for folder in (tmp_path / "run", tmp_path):
        with refused(ValueError, "env_fn: expected a game whose returns sum to 0, got 2"):
            pennies(folder, env_fn=Generous)
        assert not (tmp_path / "run").exists()
    result = pennies(tmp_path, 1, meta_solver="uniform", min_gain=None, resume=tmp_path)
    untrained, trained = columns = moves_of(result.opponent)
    np.testing.assert_array_equal(result.payoffs, Pennies.payoffs[np.ix_(moves_of(result), columns)])
    shares = {(tmp_path, "column", "policy-0"): 0.25, (tmp_path, "column", "policy-1"): 0.75}
    env = Against(Pennies, 8, "row", shares)
    env.reset(0)
    rewards: list[float] = []
    for _ in range(60):
        outcomes, (turn,) = env.observe()
        env.act(turn, np.zeros(8, np.int64))
        rewards += [reward for outcome in outcomes for reward in outcome.reward.tolist()]
    assert {*rewards} == {Pennies.payoffs[0, untrained], Pennies.payoffs[0, trained]}
    assert 0.65 < rewards.count(Pennies.payoffs[0, trained]) / len(rewards) < 0.85


def test_opponents_of_a_response_receive_their_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this game an opponent that acts wins; one that never acts loses by the other's move."""
    told: list[float] = []
    still = lambda obs, at, begins: mc.Action(np.zeros(len(at), np.int64))  # noqa: E731
    player = SimpleNamespace(choose=still, reward=lambda reward, at: told.extend(reward.tolist()))
    load = lambda *saved: SimpleNamespace(player=lambda copies: player)  # noqa: E731
    monkeypatch.setattr("marlcore.meta.against.load_policy", load)
    env = Against(OneShot, 2, "a", {(Path(), "b", "last"): 1.0})
    env.reset(0)
    for _ in range(60):
        for turn in env.observe()[1]:
            env.act(turn, np.zeros(len(turn.copies), np.int64))
    assert told.count(1.0) == len(told) > 20


@LONG
def test_rock_paper_scissors_ends_with_a_uniform_mixture(tmp_path: Path) -> None:
    """The third response finds none that gains, and ends it."""
    result = respond(tmp_path, 6, min_gain=0.01)
    assert [round(gain, 6) for gain, _ in result.gains] == [1, 1, 0]
    assert np.abs(moves(result) - 1 / 3).max() < 0.05
    saved = json.loads((tmp_path / "psro.json").read_text())
    assert saved["payoffs"] == result.payoffs.tolist() and saved["meta_solver"] == "nash"
    assert saved["half_widths"][1][0] is None, "all games of two fixed moves are copies of one"


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from types import SimpleNamespace
from marlcore.meta import nash
from test_psro import respond

def solver(payoffs):
    if len(payoffs) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return nash(payoffs)

respond(Path(sys.argv[1]), meta_solver=solver)
"""


@LONG
def test_a_killed_psro_continues_after_its_last_whole_iteration(tmp_path: Path) -> None:
    """It dies after its second iteration's games; continued, it ends as one that nothing killed."""
    folder, whole = tmp_path / "killed", respond(tmp_path / "whole")
    program = [sys.executable, "-c", KILLED, str(folder), *sys.path]
    assert subprocess.run(program, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert len(json.loads((folder / "psro.json").read_text())["gains"]) == 1
    os.utime(folder / "iteration-1" / "metrics.csv", (0, 0))
    continued = respond(folder, resume=folder)
    assert (folder / "iteration-1" / "metrics.csv").stat().st_mtime == 0, "the first iteration was not repeated"
    np.testing.assert_array_equal(continued.payoffs, whole.payoffs)
    np.testing.assert_array_equal(continued.mixture, whole.mixture)
    np.testing.assert_equal(continued.gains, whole.gains)
    np.testing.assert_equal(respond(folder, resume=folder).gains, whole.gains)


@pytest.mark.parametrize("during", ["work", "evaluate", "plot_result"])
def test_ctrl_c_names_the_directory_that_continues(during: str, tmp_path: Path, monkeypatch: Any) -> None:
    module = sys.modules["marlcore.run.run" if during == "work" else mc.psro.__module__]
    whole = getattr(module, during)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return whole(*arguments, **options)

    monkeypatch.setattr(module, during, interrupted)
    with pytest.raises(KeyboardInterrupt, match=f"resume='{re.escape(str(tmp_path))}'"):
        respond(tmp_path, 1)


def test_one_iteration_is_recorded_and_its_mixture_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with a umask that lets the group write, from which its directories do not follow."""
    before = os.umask(0o002)
    try:
        result = respond(tmp_path, 1, games=9, meta_solver="uniform", progress=True)
    finally:
        os.umask(before)
    assert "psro: policy 1 of main gains 1 (all games alike) over the last mixture" in capsys.readouterr().err
    first, second = (policy.act(UNSEEN) for policy in result.policies)
    assert second == (first + 1) % 3, "the best response"
    assert (tmp_path / "psro.png").read_bytes().startswith(b"\x89PNG")
    assert config_of(tmp_path / "iteration-1")["seed"] > 1000, "no seed of a psro with a neighbouring one"
    assert result.payoffs.tolist() == [[0, -1], [1, 0]] and result.gains[0][0] == 1
    assert np.isnan(result.half_widths[0, 1]) and result.mixture.tolist() == [0.5, 0.5]
    player = result.player(seed=1)
    drawn = [(player.reset(), player.act(UNSEEN), player.act(UNSEEN))[1:] for _ in range(40)]
    assert all(one == again for one, again in drawn), "it keeps its policy for an episode"
    assert 8 < sum(one == first for one, _ in drawn) < 32
    player = result.player(seed=1)
    assert [(player.reset(), player.act(UNSEEN))[1] for _ in range(40)] == [one for one, _ in drawn], "by its seed"
    outcome = mc.evaluate(tmp_path / "iteration-1", 40, policies={"player_0": player})
    assert set(outcome.returns["player_0"]) == {0, -1}, "the environment's copies draw on their own"


@pytest.mark.usefixtures("unplotted")
def test_another_meta_solver_mixes_what_is_there(tmp_path: Path) -> None:
    respond(tmp_path, 1, games=9, meta_solver="uniform")
    again = respond(tmp_path, 1, games=9, meta_solver=lambda payoffs: np.eye(len(payoffs))[-1], resume=tmp_path)
    assert again.mixture.tolist() == [0.0, 1.0]
    assert json.loads((tmp_path / "psro.json").read_text())["mixture"] == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"^resume: expected weights of main's network, got "):
        mc.psro(GAME, replace(DQN, hidden=(8,)), settings(tmp_path), iterations=2, progress=False, resume=tmp_path)


def test_a_result_is_whole_again_when_it_is_read(tmp_path: Path) -> None:
    """Also of two populations, whose gains are over their own mixtures."""
    payoffs = np.array([[0, -0.5, -1], [0.5, 0, 1], [1, -1, 0]])
    halves = np.array([[0, np.nan, 0.4], [np.nan, 0, 0.3], [0.4, 0.3, 0]])
    for opponent in (None, Population()):
        result = mc.PSROResult(run_dir=tmp_path, opponent=opponent)
        add_policies(result, payoffs[:2, :2], halves[:2, :2])
        result.mixture = np.array([0.25, 0.75])
        if opponent is not None:
            opponent.mixture = np.array([1.0, 0.0])
        add_policies(result, payoffs, halves)
        gain, half = result.gains[1]
        assert gain == (-0.5 if opponent is None else 1 - 0.75 * 0.5)
        assert half == pytest.approx(np.hypot(0.25 * 0.4, 0.75 * 0.3) if opponent is None else np.nan, nan_ok=True)
        if opponent is not None:
            assert opponent.gains[1] == (0.25 - 0.75 + 0.75 * 0.5, pytest.approx(np.nan, nan_ok=True))
        write_result(result, "nash")
        again = mc.PSROResult(run_dir=tmp_path, opponent=opponent and Population())
        read_into(again)
        np.testing.assert_equal(asdict(again), asdict(result))


@pytest.mark.usefixtures("unplotted")
def test_an_interval_covers_a_known_mean(tmp_path: Path) -> None:
    """Two untrained policies of Kuhn poker have a mean of 0 over both sides."""
    config = settings(tmp_path, total_steps=60, learner={"warmup": 50, "batch_size": 8})
    result = mc.psro(KuhnPoker, DQN, config, iterations=1, games=400, min_gain=None, progress=False)
    half = result.half_widths[0, 1]
    assert 0.02 < half < 0.3 and result.half_widths[1, 0] == half


class GenerousPoker(KuhnPoker):
    """Each end is worth 1 more to the first player."""

    def _enter(self, state: Any) -> None:
        super()._enter(state)
        self._cumulative_rewards["player_0"] += float(state.is_terminal())


def psro(env_fn: Any = KuhnPoker, folder: str = "/nowhere", run: Any = None, **options: Any) -> mc.PSROResult:
    config = settings(Path(folder), **(run or {}))
    return mc.psro(env_fn, DQN, config, **{"iterations": 1, "progress": False, **options})


REFUSED: dict[str, Refused] = {
    "no iterations": (lambda: psro(iterations=0), ValueError, "iterations: expected an integer of at least 1, got 0"),
    "three games": (lambda: psro(games=3), ValueError, "games: expected an integer of at least 4, got 3"),
    "a word": (lambda: psro(min_gain="0"), ValueError, "min_gain: expected a number or None, got '0'"),
    "no settings": (lambda: mc.psro(KuhnPoker, DQN, None, iterations=1), TypeError, "config: expected a Config, got N"),
    "own opponents": (
        lambda: psro(run={"self_play": {"pool": 3}}), ValueError, "config.self_play: expected the default, since psro"
    ),
    "evaluations": (
        lambda: psro(run={"evaluation": {"interval": 9}}), ValueError, "config.evaluation: expected the default, since"
    ),
    "nothing to resume": (lambda: psro(folder="/n", resume="/n"), ValueError, "resume: expected the directory of a p"),
    "another one": (lambda: psro(resume="/proc"), ValueError, "run_dir: expected None or the directory of the resume"),
}  # fmt: skip
test_bad_input_is_refused = refusals(REFUSED)


def test_a_refused_psro_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    says = "algorithm: expected no team and no joint critic with two populations, got MAPPO"
    for env_fn, agents in (("gymnasium:CartPole-v1", 1), (partial(Contest, 3), 3)):
        names = [f"agent_{i}" for i in range(agents)]
        with refused(ValueError, f"env_fn: expected a game of two agents, got {names}"):
            psro(env_fn, str(folder))
    with refused(ValueError, says):
        config = mc.Config(run_dir=str(folder), policies=str)
        mc.psro(RockPaperScissors, "mappo", config, iterations=1, progress=False)
    for algorithm in (DQN, {"player_0": DQN, "player_1": DQN}):
        config = settings(folder, policies=None if algorithm != DQN else str, learners={"player_2": mc.LearnerConfig()})
        with refused(ValueError, "learners: expected the policies ['player_0', 'player_1'], got 'player_2'"):
            mc.psro(KuhnPoker, algorithm, config, iterations=1, progress=False)
    assert not folder.exists()
    (tmp_path / "file").touch()
    with refused(ValueError, f"run_dir: expected a new or empty directory, got {str(tmp_path)!r}, which holds files"):
        psro(folder=str(tmp_path))


def test_a_game_that_is_not_zero_sum_is_refused(tmp_path: Path) -> None:
    run = {"total_steps": 60, "learner": {"warmup": 50, "batch_size": 8}}
    with refused(ValueError, "env_fn: expected a game whose returns sum to 0, got 1"):
        psro(GenerousPoker, str(tmp_path), run)
