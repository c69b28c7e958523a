"""Makes the players of opponents (anchors and frozen policies) for any agent.

Opponents have numbers: 0 is the latest policy, -1, -2, ... are the anchors in their order, and 1, 2, ... are the frozen
copies in the order of their admission. In a league, n times `SPAN` is added to the numbers of the n-th policy after the
policy that learns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..config import AssignedPolicy, Config
from ..loops import ActingPolicy, Player, ScriptedPlayer, exploration_of, network_of
from ..references import resolve
from ..weights import ParameterStore
from .pool import SPAN, load_opponent

if TYPE_CHECKING:
    import torch

MakePlayer: TypeAlias = Callable[[], Player]  # of one agent, in all copies


@dataclass
class Opponents:
    """Makes and keeps the opponents' players, and frozen policies' models, until `keep` releases them."""

    policies: Sequence[AssignedPolicy]  # of the league; the policy that learns comes first
    pools: Sequence[ParameterStore]  # of their frozen copies
    config: Config
    copies: int
    generator: np.random.Generator  # for the algorithm's draws
    device: torch.device | None  # None if all policies act without torch
    live: Sequence[ActingPolicy] = ()  # the league's policies with their newest weights; empty if they do not play

    def __post_init__(self) -> None:
        """Builds models and anchors. Raises ValueError, TypeError: see `make_anchors`."""
        pairs = zip(self.policies, self.pools, strict=True)
        self._followed = [network_of(policy, self.config, self.device, pool) for policy, pool in pairs]
        anchors = make_anchors(self.policies[0], self.config, self.copies, self.generator, self.device)
        self._makers: dict[int, MakePlayer] = {-1 - i: anchor for i, anchor in enumerate(anchors)}
        self._players: dict[tuple[str, int], Player] = {}  # by agent and number

    def load(self, number: int) -> bool:
        """Loads a frozen policy's weights if needed; returns False if the pool has replaced that policy."""
        if number not in self._makers:
            place, version = divmod(number, SPAN)
            live = self.live[place] if self.live else None
            acting = self._frozen(place, version) if version else live
            if acting is None:
                return False
            self._makers[number] = partial(replace, acting)
        return True

    def _frozen(self, place: int, version: int) -> ActingPolicy | None:
        network, subscriber = self._followed[place]
        if not subscriber.pull_version(version):
            return None
        explore = exploration_of(subscriber.extras) if self.config.self_play.explore else None
        spaces = self.policies[place].spaces
        return ActingPolicy(deepcopy(network), spaces, self.copies, self.config.replay.pad, self.generator, explore)

    def player(self, agent: str, number: int) -> Player:
        """Returns an opponent's player for an agent, with its own stacks, recurrent states and script objects."""
        if (agent, number) not in self._players:
            self._players[agent, number] = self._makers[number]()
        return self._players[agent, number]

    def keep(self, numbers: Collection[int]) -> None:
        """Releases all frozen policies except those with these numbers."""
        for number in [number for number in self._makers if number > 0 and number not in numbers]:
            del self._makers[number]
        self._players = {key: player for key, player in self._players.items() if key[1] in self._makers}


def make_anchors(
    policy: AssignedPolicy, config: Config, copies: int, generator: np.random.Generator, device: torch.device | None
) -> list[MakePlayer]:
    """Returns, for each anchor, a function that makes its player.

    Raises ValueError for a missing script or checkpoint, or a checkpoint of another network.
    """
    anchors: list[MakePlayer] = []
    for reference, name in zip(config.self_play.anchors, config.self_play.names, strict=True):
        source = _source_of(reference)
        if isinstance(source, Path):
            from ..loops import TorchNetwork, build_model  # which import torch

            assert device is not None  # a run with such anchors acts by torch
            model = build_model(policy, config)
            expected = f"self_play.anchors: expected a checkpoint of {policy.name}'s network"
            state = load_opponent(source, model, expected, own_name=False)  # users copy checkpoints under other names
            if model.norm is None and state.get("norm") is not None:
                raise ValueError(f"{expected}, got {reference!r}, for normalized observations; learner.obs_norm is off")
            network = TorchNetwork(policy.algorithm, model.to(device).acting, device)
            anchors.append(partial(ActingPolicy, network, policy.spaces, copies, config.replay.pad, generator))
        else:
            anchors.append(partial(ScriptedPlayer, name, source, policy.spaces, copies, policy.hides_joint))
    return anchors


def make_beside_anchors(env_fn: Callable[[], Any], anchors: Sequence[str]) -> Any:
    """Makes an environment. Raises ValueError first if this machine lacks one of the anchors."""
    for reference in anchors:
        _source_of(reference)
    return env_fn()


def _source_of(reference: str) -> Any:
    """Returns the path of an anchor's checkpoint, or the anchor's script. Raises ValueError if it does not exist."""
    if not reference.endswith(".pt"):
        return resolve("self_play.anchors", reference)
    if not Path(reference).exists():
        raise ValueError(f"self_play.anchors: expected a checkpoint, got {reference!r}, which does not exist")
    return Path(reference)


def name_of(number: int, anchors: Sequence[str], rivals: Sequence[str] = ()) -> str:
    """Returns an opponent's name: the name of an anchor, "pool:latest", "pool:3", or in a league "pool:exploiter:3".

    `rivals` are the names of the league's policies; the learning policy comes first.
    """
    if number < 0:
        return anchors[-number - 1]
    place, version = divmod(number, SPAN)
    return f"pool:{rivals[place] + ':' if place else ''}{version or 'latest'}"
