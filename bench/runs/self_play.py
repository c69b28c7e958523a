"""`python -m bench self_play`: the last policy of a run of self-play against the first of its pool, in 200 games.

Half of the games are played from each side, greedily; games without chance begin with some random moves. In "exploring"
games both sides explore as in training: the first member acts at random, the last policy in one move of twenty.
Tic-tac-toe is also played against a perfect player. `--speed` compares async with serial mode at balanced updates.
"""

import argparse
import time
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pettingzoo.utils import BaseWrapper
from puck import chaser, idle, two_player_puck

import marlcore as mc
from marlcore import algos
from marlcore.config import read_settings
from marlcore.declared import changed
from marlcore.envs import NamedEnvironment
from marlcore.record import read_metrics

from ..figures import origin, records
from ..machine import made, say
from ..processes import in_turns
from .training import play_both_sides, trained

GAMES = 200
SPEED_STEPS, SPEED_ROUNDS = 20_000, 3
DQN = mc.DQN(learning_rate=1e-3, reward_scale=1.0)

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]  # of cells
Board = tuple[int, ...]  # 1 where the player who moves has a mark, -1 where the other one has, 0 elsewhere


@cache
def value_of(board: Board) -> int:
    """For the player who moves: 1 if it wins, 0 for a draw, -1 if it loses."""
    if any(all(board[cell] == -1 for cell in line) for line in LINES):
        return -1
    return max((-value_of(after(board, move)) for move in range(9) if not board[move]), default=0)


def after(board: Board, move: int) -> Board:
    """The board as the other player sees it."""
    return tuple(-(mark or cell == move) for cell, mark in enumerate(board))


def perfect(obs: Any, rng: np.random.Generator = np.random.default_rng(0)) -> int:  # noqa: B008
    """Plays PettingZoo's tic-tac-toe without a mistake: draws among the moves of the highest value, by minimax."""
    mine, others = (obs["observation"][..., plane].ravel().astype(int) for plane in (0, 1))
    board = tuple((mine - others).tolist())
    values = {move: -value_of(after(board, move)) for move in range(9) if not board[move]}
    return int(rng.choice([move for move, value in values.items() if value == max(values.values())]))


@dataclass(frozen=True)
class Game:
    make: Any
    steps: int
    anchors: Any
    opening: int = 0  # random moves
    n_step: int = 1
    updates_per_step: float = 0.25
    balanced: float = 0.3  # updates a step for which serial mode spends half of its time in updates
    perfect: Any = None  # a player that never loses


TASKS = {
    "puck": Game(two_player_puck, 150_000, {idle: 0.1, chaser: 0.1}, n_step=3, balanced=0.16),
    "tictactoe_v3": Game(NamedEnvironment("pettingzoo:classic.tictactoe_v3"), 200_000, {}, opening=2, perfect=perfect),
    "connect_four_v3": Game(NamedEnvironment("pettingzoo:classic.connect_four_v3"), 500_000, {}, opening=4),
}


class Opening(BaseWrapper):  # type: ignore[misc]
    """A PettingZoo AEC environment of masked actions whose first moves are random."""

    def __init__(self, env: Any, moves: int) -> None:
        super().__init__(env)
        self._moves, self._rng = moves, np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._rng = self._rng if seed is None else np.random.default_rng(seed)
        super().reset(seed=seed)
        for _ in range(self._moves):
            mask = self.observe(self.agent_selection)["action_mask"]
            self.step(int(self._rng.choice(np.flatnonzero(mask))))


def config_of(game: Game, seed: int, mode: Any = "async") -> mc.Config:
    return mc.Config(
        total_steps=game.steps,
        seed=seed,
        mode=mode,
        updates_per_step=game.updates_per_step,
        actor=mc.ActorConfig(envs=8, sync_interval=10),
        learner=mc.LearnerConfig(n_step=game.n_step, warmup=1000, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=mc.Linear(1.0, 0.05, game.steps // 3)),
        self_play=mc.SelfPlayConfig(pool=8, admit_updates=1000, anchors=game.anchors, explore=game.opening > 0),
    )


def learn(name: str, seed: int, file: str | None) -> dict[str, Any]:
    """A row: what a run took, and the games that its last policy won, drew and lost."""
    game, began = TASKS[name], time.monotonic()
    algorithm, config = DQN, config_of(game, seed)
    if file is not None:
        settings = read_settings(file)
        algorithm = changed(algos.make(settings.algo), settings.algorithm)
        config = replace(settings.config, seed=seed, mode="async")
    with trained(game.make, algorithm, config) as result:
        seconds = time.monotonic() - began
        first = mc.load_policy(result.run_dir, "main", "opponent-1")
        opened = (lambda: Opening(game.make(), game.opening)) if game.opening else game.make
        scores = {
            "greedy: won / drawn / lost": score(opened, result.run_dir, first, False),
            "exploring": score(opened, result.run_dir, first, True),
            "perfect player": game.perfect and score(game.make, result.run_dir, game.perfect, False),
        }
    took = {"steps": result.steps, "updates": result.updates["main"], "seconds": round(seconds)}
    return {"game": name, "seed": str(seed), **took, **scores}


def score(make: Any, run_dir: Path, opponent: Any, explore: bool) -> str:
    """Games won, drawn and lost by the last policy against an opponent."""
    returns = play_both_sides(run_dir, opponent, GAMES, env_fn=make, explore=explore)
    won, drawn = int((returns > 0.5).sum()), int((abs(returns) <= 0.5).sum())  # puck pays a little for standing well
    return f"{won} / {drawn} / {GAMES - won - drawn}"


def speed(name: str, mode: Any) -> float:
    """Episodes/s of the last four fifths of a run without games of the policy against itself."""
    game = replace(TASKS[name], steps=SPEED_STEPS, updates_per_step=TASKS[name].balanced)
    config = config_of(game, 0, mode)
    config = replace(config, self_play=replace(config.self_play, latest=0.0), metrics=mc.MetricsConfig(("csv",)))
    with trained(game.make, DQN, config) as result:
        metrics = read_metrics(result.run_dir / "metrics.csv")
    times = sorted(metric.time_s for metric in metrics if metric.name == "episode_return")
    first = len(times) // 5
    return (len(times) - first - 1) / (times[-1] - times[first])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", action="append", choices=list(TASKS), help="run only this task; may be repeated")
    parser.add_argument("--seeds", default="0,1,2", help="with commas between")
    parser.add_argument("--speed", action="store_true", help="compare async with serial mode")
    parser.add_argument("--settings", help="a file of settings to train with, such as one of marlcore/presets")


def main(options: argparse.Namespace) -> None:
    for name in options.task or TASKS:
        if options.speed:
            sides = {mode: partial(speed, name, mode) for mode in ("serial", "async")}
            serial, overlapped = map(median, in_turns(sides, SPEED_ROUNDS).values())
            ratio = f"async {overlapped:,.1f} episodes/s, ratio {overlapped / serial:.2f}"
            say(f"{name}, {TASKS[name].balanced:g} updates/step: serial {serial:,.1f} episodes/s, {ratio}")
        else:
            say(records([learn(name, int(seed), options.settings) for seed in options.seeds.split(",")]))
    say(origin(made(options.load_before)))
