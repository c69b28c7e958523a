"""Opponents as players, anchors and frozen policies; and who plays whom in an actor's copies of the environment.

Opponents have numbers, which name them to all processes: 0 is the latest policy, -1, -2, ... are the anchors in their
order, and 1, 2, ... the frozen copies in the order of their admission.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...interfaces import Turn
from ...processes import Reporter, Telemetry
from ...references import resolve
from ...weights import ParameterStore
from ..config import BOTH, AssignedPolicy, Config, SelfPlayConfig
from ..loops import (
    LATEST,
    WINNER,
    Ended,
    Player,
    PlayersByNumber,
    Policy,
    PolicyPlayer,
    ScriptedPlayer,
    Seat,
    build_model,
    exploration_of,
    part_of_tag,
)
from .pool import load_opponent


@dataclass
class Opponents:
    """The players of opponents by number; a frozen policy has a model of its own, kept while it plays or is held."""

    policy: AssignedPolicy  # the one that learns
    config: Config
    pool: ParameterStore  # of frozen policies
    copies: int
    generator: np.random.Generator  # for the algorithm's draws
    device: torch.device

    def __post_init__(self) -> None:
        """Raises ValueError, TypeError: see `make_anchors`."""
        self._model = build_model(self.policy, self.config).acting.to(self.device)
        self._subscriber = self.pool.subscriber(self._model)
        anchors = make_anchors(self.policy, self.config, self.copies, self.generator, self.device)
        self._players: dict[int, Player] = {-1 - i: anchor for i, anchor in enumerate(anchors)}

    def load(self, number: int) -> bool:
        """Makes an opponent's player unless it is here; returns whether it can play: not if the pool replaced it."""
        if number not in self._players:
            if not self._subscriber.pull_version(number):
                return False
            explore = exploration_of(self._subscriber.extras) if self.config.self_play.explore else None
            model = deepcopy(self._model)
            frozen = Policy(self.policy.algorithm, model, self.generator, self.device, explore)
            self._players[number] = PolicyPlayer(frozen, self.policy.spaces, self.copies, self.config.replay.pad)
        return True

    def __getitem__(self, number: int) -> Player:
        return self._players[number]

    def keep(self, numbers: Collection[int]) -> None:
        """Releases all other frozen policies."""
        self._players = {number: self._players[number] for number in self._players if number < 0 or number in numbers}


def make_anchors(
    policy: AssignedPolicy, config: Config, copies: int, generator: np.random.Generator, device: torch.device
) -> list[Player]:
    """The anchors' players. Raises ValueError, TypeError: one cannot be imported, or is of another network."""
    anchors: list[Player] = []
    for reference, name in zip(config.self_play.anchors, config.self_play.names, strict=True):
        source = _source_of(reference)
        if isinstance(source, Path):
            model = build_model(policy, config)
            expected = f"self_play.anchors: expected a checkpoint of {policy.name}'s network"
            load_opponent(source, model, expected, own_name=False)  # users copy checkpoints under other names
            acting = Policy(policy.algorithm, model.to(device).acting, generator, device)
            anchors.append(PolicyPlayer(acting, policy.spaces, copies, config.replay.pad))
        else:
            anchors.append(ScriptedPlayer(name, source, policy.spaces, copies))
    return anchors


def make_beside_anchors(env_fn: Callable[[], Any], anchors: Sequence[str]) -> Any:
    """Makes an environment on a machine that has the anchors too. Raises ValueError: it lacks one."""
    for reference in anchors:
        _source_of(reference)
    return env_fn()


def _source_of(reference: str) -> Any:
    """The path of an anchor's checkpoint, or its script. Raises ValueError: it is not there."""
    if not reference.endswith(".pt"):
        return resolve("self_play.anchors", reference)
    if not Path(reference).exists():
        raise ValueError(f"self_play.anchors: expected a checkpoint, got {reference!r}, which does not exist")
    return Path(reference)


def name_of(number: int, anchors: Sequence[str]) -> str:
    """An opponent's name: "pool:latest", "pool:3", or its anchor's."""
    if number < 0:
        return anchors[-number - 1]
    return f"pool:{number}" if number else "pool:latest"


@dataclass
class Matches:
    """The present match of each copy: the learning policy's side and its opponent.

    An opponent is drawn for a block of episodes. Its player is kept meanwhile, even if the pool replaces it.
    """

    config: SelfPlayConfig
    seats: Mapping[str, Seat]  # by agent, of the two sides; it fills their columns
    ended: NDArray[np.int64]  # [copies], of the environment: episodes ended
    published: Callable[[], Mapping[str, Any]]  # what came with the weights: the opponents' numbers and their odds
    opponents: Opponents
    parts: list[str]  # the names of the replay's parts
    generator: np.random.Generator  # draws opponents
    report: Callable[[int, int], None]  # opponent and result of a game: 1 won, 0 drawn, -1 lost

    def __post_init__(self) -> None:
        copies = len(self.ended)
        self.present = np.zeros(copies, np.int64)  # the number of each copy's opponent
        self._episodes = np.full(copies, -1)  # of which the match was drawn
        self._sides = np.arange(copies) % 2  # of the learning policy
        self._left = np.zeros(copies, np.int64)  # episodes of each copy's block that are still to begin
        for seat in self.seats.values():
            seat.opponents = PlayersByNumber(seat.numbers.__getitem__, self.opponents.__getitem__)

    def begin(self, turn: Turn) -> None:
        """Draws the matches of episodes that begin with this turn, and seats both sides."""
        copies = turn.copies[turn.begins]
        copies = copies[self._episodes[copies] != self.ended[copies]]
        if not len(copies):
            return
        agents, side = list(self.seats), self.config.side
        self._episodes[copies] = self.ended[copies]
        self._sides[copies] = 1 - self._sides[copies] if side == BOTH else agents.index(side)
        drawn = self._left[copies] == 0
        self._left[copies[drawn]] = self.config.block
        self._left[copies] -= 1
        for copy, new in zip(copies.tolist(), drawn.tolist(), strict=True):
            self._seat(copy, self._drawn() if new else int(self.present[copy]))
        self.opponents.keep({*self.present.tolist(), *self.published()["opponents"].tolist()})

    def _seat(self, copy: int, opponent: int) -> None:
        self.present[copy] = opponent
        part = part_of_tag(name_of(opponent, self.config.names), self.parts)
        for side, seat in enumerate(self.seats.values()):
            seat.parts[copy] = part
            seat.numbers[copy] = LATEST if side == self._sides[copy] else opponent

    def _drawn(self) -> int:
        """An opponent that can play; one that the pool has replaced meanwhile is drawn again."""
        published = self.published()
        numbers, odds = published["opponents"], published["odds"].copy()
        while odds.any():
            i = int(self.generator.choice(len(odds), p=odds / odds.sum()))
            number = int(numbers[i])
            if number == LATEST or self.opponents.load(number):
                return number
            odds[i] = 0.0
        return LATEST

    def note(self, ended: Ended) -> None:
        """Reports the results of the learning policy's games: by info["winner"], else by the sign of its return."""
        infos = dict(ended.infos)
        for copy, total in zip(ended.copies.tolist(), ended.returns.tolist(), strict=True):
            opponent = int(self.present[copy])
            if opponent != LATEST:
                winner = infos.get(copy, {}).get(WINNER, total)
                self.report(opponent, int(np.sign(winner)))


def report_result(lane: Reporter, opponent: int, result: int) -> None:
    """Reports a game in an actor's lane of results, from which `results_in` takes it."""
    lane.report_each(time.monotonic(), 0, str(opponent), "result", [result])


def results_in(lanes: Telemetry) -> list[tuple[int, int]]:
    """The opponents and results of the games reported since the last call, in order of time."""
    return [(int(game.agent), int(game.value)) for game in lanes.tail()]
