"""Networks of teams: members' networks, shared where their spaces are equal, and team policies and critics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import nn
from torch.nn import functional

from ...checks import brief
from ...compiled import MEMBER
from ...interfaces import PREVIOUS_REWARD
from ...observations import ALONE
from ...spaces import ALIVE, JOINT, MEMBERS, Spaces
from .actions import BoxActions
from .actor_critic import Critics, DeterministicPolicy
from .distributions import masked
from .policy_value import OutputNetwork
from .recurrent import PREVIOUS_ACTION, RecurrentTorso, State, Stepped, Windows, first_layers, seen_by


@dataclass(frozen=True)
class MemberGroup:
    """Members that share a network.

    Attributes:
        part: the name of the part of the team's observation that holds these members.
        rows: the rows of these members in the part.
        spaces: one member's spaces; in a group of several members, observations include the member's one-hot index.
    """

    part: str
    rows: slice
    spaces: Spaces

    @property
    def size(self) -> int:
        return int(self.rows.stop - self.rows.start)


class TeamSpaces:
    """Splits a team's spaces for its networks; see envs/team.py.

    Args:
        shared: members with equal spaces share a network; otherwise each has its own.

    Attributes:
        count: the number of members.
        choices: each member's number of actions if all members' actions are Discrete; otherwise empty.
        groups: the groups that share a network, in the order of the members.

    Raises: ValueError: the agent is no team, or its members' Boxes differ in size. The message begins with `owner`.
    """

    def __init__(self, owner: str, spaces: Spaces, shared: bool = True) -> None:
        parts = {str(part.keys[-1]): part for part in spaces.parts if part.keys}
        named = sorted((key for key in parts if key.startswith(MEMBERS)), key=lambda key: (len(key), key))
        if ALIVE not in parts or not named:
            expected = "an agent that is a team (see Config.teams)"
            raise ValueError(f"{owner}: expected {expected}, got one that observes {brief(spaces.observation)}")
        self.spaces = spaces
        self.count = int(np.prod(parts[ALIVE].field.shape))
        self._alive = parts[ALIVE].name
        self._joint = parts[JOINT].name if JOINT in parts else None
        self.choices: list[int] = getattr(spaces.action, "nvec", np.zeros(0, np.int64)).tolist()
        if not self.choices and spaces.action.shape[:1] != (self.count,):
            raise ValueError(f"{owner}: expected members' actions of equal size, got {brief(spaces.action)}")
        self.state_size = int(np.prod(parts[JOINT].field.shape)) if JOINT in parts else 0
        self.groups: list[MemberGroup] = []
        first = 0
        for part in (parts[key] for key in named):
            size = part.field.shape[0]
            step = size if shared else 1
            for start in range(0, size, step):
                seen: gym.Space = gym.Box(part.space.low[0], part.space.high[0], dtype=part.space.dtype)
                if step > 1:
                    seen = gym.Dict({ALONE: seen, MEMBER: gym.Box(0, 1, (step,), np.float32)})
                of_member = Spaces(seen, self._action_of(first + start), stack=spaces.stack)
                self.groups.append(MemberGroup(part.name, slice(start, start + step), of_member))
            first += size

    def _action_of(self, member: int) -> gym.Space:
        if self.choices:
            return gym.Discrete(max(self.choices))
        box = self.spaces.action
        return gym.Box(box.low[member], box.high[member], dtype=box.dtype)

    def alive(self, obs: Any) -> torch.Tensor:
        """Returns float32 [..., members]: 1 for each member that acts, else 0, in the newest observation of a stack."""
        return self._newest(obs[self._alive]).float()

    def state(self, obs: Any) -> torch.Tensor:
        """Returns the environment's state, float32 [..., size]; see envs/joint.py."""
        assert self._joint is not None
        return self._newest(obs[self._joint]).float()

    def _newest(self, part: torch.Tensor) -> torch.Tensor:
        return part[..., -1, :] if self.spaces.stack > 1 else part

    def allowed(self, mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
        """Converts a mask [..., all choices] to each member's allowed choices, bool [..., members, most].

        `most` is the largest number of a member's choices. Without a mask, returns None if every member has `most`
        choices; otherwise allows all choices, with the leading axes and on the device of `like`, [..., any, most].
        """
        most = max(self.choices)
        if mask is None:
            if min(self.choices) == most:
                return None
            mask = like.new_ones((*like.shape[:-2], sum(self.choices)), dtype=torch.bool)
        masks = torch.split(mask, self.choices, -1)
        return torch.stack([functional.pad(each, (0, most - each.shape[-1])) for each in masks], -2)


def discrete_team(owner: str, spaces: Spaces, shared: bool) -> TeamSpaces:
    """Returns a team's spaces. Raises ValueError if the agent is no team, or its members' actions are not Discrete."""
    team = TeamSpaces(owner, spaces, shared)
    if not team.choices:
        raise ValueError(f"{owner}: expected Discrete actions of a team's members, got {brief(spaces.action)}")
    return team


class MemberNetworks(nn.Module):
    """The networks of a team's members, made by `make`; each maps a member's observations to [k, outputs]."""

    def __init__(self, team: TeamSpaces, make: Callable[[Spaces], nn.Module]) -> None:
        super().__init__()
        self.team = team
        self.networks = nn.ModuleList(make(group.spaces) for group in team.groups)

    def forward(self, obs: Any) -> torch.Tensor:
        """Returns the outputs [k, members, outputs] for observations of the team [k, ...]."""
        pairs = zip(self.team.groups, self.networks, strict=True)
        outputs = [network(self.seen(group, obs)).unflatten(0, (-1, group.size)) for group, network in pairs]
        return torch.cat(outputs, 1)

    def stepped(self, obs: Any, state: State | None, windows: Windows | None = None) -> Stepped:
        """Returns the outputs of recurrent networks, and the next state; see RecurrentTorso.

        Args:
            obs: [k, ...]; with `windows`, [B, N, ...].
            state: parts [k, members, ...], and the previous reward [k]; None: every row begins an episode.
            windows: has actions [B, N - 1, members, ...] and rewards [B, N - 1].

        Returns: outputs [k, members, outputs], or [B, N, members, outputs].
        """
        network: Any
        outputs: list[torch.Tensor] = []
        after: list[Mapping[str, torch.Tensor]] = []
        first = 0
        for group, network in zip(self.team.groups, self.networks, strict=True):
            rows = slice(first, first := first + group.size)
            seen = self.seen(group, obs, windows is not None)
            before = None if state is None else {name: _of_rows(part, rows) for name, part in state.items()}
            values, later = network.stepped(seen, before, windows and windows.of_rows(rows))
            values = values.unflatten(0, (-1, group.size))
            outputs.append(values.transpose(1, 2) if windows is not None else values)
            after.append({name: part.unflatten(0, (-1, group.size)) for name, part in later.items()})
        return torch.cat(outputs, -2), {name: torch.cat([each[name] for each in after], 1) for name in after[0]}

    def acted(self, state: State, action: Any) -> dict[str, torch.Tensor]:
        """Adds the members' actions [k, members, ...] to the state that `stepped` returned, and returns the result."""
        network: Any
        actions = torch.as_tensor(action, device=next(iter(state.values())).device)
        parts, first = [], 0
        for group, network in zip(self.team.groups, self.networks, strict=True):  # each scales by its own bounds
            part = actions[:, first : (first := first + group.size)].flatten(0, 1)
            parts.append(network.torso.actions(part).unflatten(0, (-1, group.size)))
        encoded = torch.cat(parts, 1)
        return {**state, PREVIOUS_ACTION: encoded, PREVIOUS_REWARD: encoded.new_zeros(encoded.shape[0])}

    def seen(self, group: MemberGroup, obs: Any, windows: bool = False) -> Any:
        """Selects a group's observations, [k * size, ...], from the team's: [k, ...] or, if `windows`, [k, N, ...]."""
        axis = 1 + windows + (self.team.spaces.stack > 1)
        seen = obs[group.part].narrow(axis, group.rows.start, group.size).movedim(axis, 1)
        if group.size == 1:
            return seen.flatten(0, 1)
        between = seen.shape[2 : 1 + axis]
        number = torch.eye(group.size, device=seen.device).view(1, group.size, *[1] * len(between), group.size)
        numbers = number.expand(seen.shape[0], -1, *between, -1)
        return {ALONE: seen.flatten(0, 1), MEMBER: numbers.flatten(0, 1)}


def _of_rows(part: torch.Tensor, rows: slice) -> torch.Tensor:
    """Returns a state's part [k, members, ...] for the members `rows`, [k * size, ...]; repeats a shared part [k]."""
    if part.ndim == 1:
        return part.repeat_interleave(rows.stop - rows.start)
    return part[:, rows].flatten(0, 1).contiguous()  # a view's strides keep torch from exporting an LSTM to ONNX


class OneHotActions:
    """Encodes a team's Discrete actions as the members' one-hot vectors, one after another, [B, members * most]."""

    def __init__(self, team: TeamSpaces) -> None:
        self.members, self.most = team.count, max(team.choices)
        self.size = self.members * self.most

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Encodes actions [B, members] of rows as float32 [B, size]."""
        return functional.one_hot(action.long(), self.most).flatten(1).float()

    def decode(self, scores: Any) -> Any:
        """Returns the actions [k, members] with the highest scores [k, size], an array or a tensor."""
        return scores.reshape(-1, self.members, self.most).argmax(2)

    decoded = decode


def team_actions(owner: str, team: TeamSpaces) -> OneHotActions | BoxActions:
    """Returns the encoding of a team's actions. Raises ValueError as BoxActions does."""
    return OneHotActions(team) if team.choices else BoxActions(owner, team.spaces.action)


class TeamPolicy(nn.Module):
    """Maps a team's observations to [B, size]: its members' Box actions in [-1, 1], or scores of Discrete actions."""

    noisy = DeterministicPolicy.noisy

    def __init__(self, hyper: Any, spaces: Spaces) -> None:
        super().__init__()
        self.team = TeamSpaces(hyper.owner, spaces, hyper.shared)
        self.actions = team_actions(hyper.owner, self.team)

        def member_policy(spaces: Spaces) -> nn.Module:
            if not self.team.choices:
                return DeterministicPolicy(hyper, spaces)
            torso = first_layers(hyper, spaces, hyper.hidden, RecurrentTorso)
            return OutputNetwork(hyper, torso, max(self.team.choices))

        self.members = MemberNetworks(self.team, member_policy)

    def forward(self, obs: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the outputs [B, size]; without `mask`, takes the mask from the observation."""
        return self.scored(seen_by(self.members, obs), obs, mask)

    def stepped(self, obs: Any, state: State | None, mask: torch.Tensor | None = None) -> Stepped:
        """Returns, with memory, the outputs for observations and a state, and the next state."""
        outputs, after = self.members.stepped(obs, state)
        return self.scored(outputs, obs, mask), after

    def scored(self, outputs: torch.Tensor, obs: Any, mask: torch.Tensor | None) -> torch.Tensor:
        """Excludes forbidden Discrete actions from outputs [B, members, outputs]; returns the outputs [B, size]."""
        if self.team.choices:
            allowed = self.team.allowed(self.team.spaces.mask_in(obs) if mask is None else mask, outputs)
            outputs = masked(outputs, allowed)
        return outputs.flatten(1)

    def greedy(self, obs: Any, mask: torch.Tensor | None) -> Any:
        """Returns the actions [k, members, ...] without exploration."""
        return self.actions.decoded(self(obs, mask))

    def acted(self, state: State, action: Any) -> State:
        return self.members.acted(state, action)

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs

    def drawn(self, outputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Returns actions [B, size] for critics, with gradients; draws Discrete actions as one-hot vectors."""
        if not self.team.choices:
            return outputs
        scores = outputs.reshape(-1, self.team.count, self.actions.size // self.team.count)
        uniform = torch.rand(scores.shape, generator=generator, device=scores.device).clamp_(1e-20)
        soft = torch.softmax(scores - torch.log(-torch.log(uniform)), -1)
        hard = functional.one_hot(soft.argmax(-1), scores.shape[-1]).float()
        drawn: torch.Tensor = (hard + (soft - soft.detach())).flatten(1)  # exactly one-hot
        return drawn


class TeamCritics(Critics):
    """Networks from all members' observations and actions to the team's value; a dead member's action counts as 0."""

    def __init__(self, hyper: Any, policy: TeamPolicy, members: int = 1) -> None:
        self.team = policy.team
        spaces = self.team.spaces
        if self.team.choices:  # the last actions, which memory sees, are one-hot vectors of one length
            spaces = replace(spaces, action=gym.MultiDiscrete([max(self.team.choices)] * self.team.count))
        super().__init__(hyper, spaces, policy.actions.size, hyper.critics * members)

    def forward(self, obs: Any, action: torch.Tensor, count: int | None = None) -> torch.Tensor:
        return super().forward(obs, self.of_living(obs, action), count)

    def of_living(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
        """Returns the actions [..., B, size], with 0 for each dead member, that is, a member that does not act."""
        of_members = action.reshape(*action.shape[:-1], self.team.count, -1)
        return (of_members * self.team.alive(obs)[..., None]).flatten(-2)

    def of_each(self, obs: Any, joint: torch.Tensor) -> torch.Tensor:
        """Returns the first network's values [members, B] of `joint` [members, B, size].

        `joint` holds B joint actions for each member.
        """
        return self.through(self.beside(obs, joint).flatten(0, 1)[None]).view(len(joint), -1)

    def beside(self, obs: Any, joint: torch.Tensor) -> torch.Tensor:
        """Returns the inputs [members, B, inputs] of networks for `joint` [members, B, size]."""
        seen = seen_by(self.encoder, obs).expand(len(joint), -1, -1)
        return torch.cat([seen, self.of_living(obs, joint)], 2)


class MemberCritics(TeamCritics):
    """Critics of the members' own rewards; network number i * members + m is critic i of member m."""

    def __init__(self, hyper: Any, policy: TeamPolicy) -> None:
        super().__init__(hyper, policy, policy.team.count)

    def forward(self, obs: Any, action: torch.Tensor, count: int | None = None) -> torch.Tensor:
        """Returns the values [critics per member, members, B] of actions [B, size]."""
        values = super().forward(obs, action)
        return values.reshape(-1, self.team.count, values.shape[1])

    def of_each(self, obs: Any, joint: torch.Tensor) -> torch.Tensor:
        return self.through(self.beside(obs, joint))
