"""Makes the policies that act without torch, from networks of torch."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from ... import compiled
from ...interfaces import CompiledPolicy
from ...spaces import Spaces
from ..bases.clipped_policy import ClippedPolicy
from ..networks.actor_critic import ContinuousPolicy
from ..networks.policy_value import PolicyNetwork
from ..networks.qnetwork import Head, QNetwork
from ..networks.teams import MemberNetworks, TeamPolicy
from .plain import NotPlain, Watched, check_deviations, layers_of

Names: TypeAlias = dict[nn.Module, str]  # of a model's modules

PACKAGE = __package__.partition(".")[0] + "."
ACTING = ("act", "chosen", "greedy", "sampled", "first_priority", "priority_of")  # an algorithm's methods for actors


def acting_policy(algorithm: Any, model: Any, spaces: Spaces) -> CompiledPolicy:
    """Returns the form of an algorithm's policy that acts without torch; it has no weights until `load`.

    Args:
        model: a module like the published one, whose attribute `model` is the network by which actors act.

    Raises NotPlain if no chain can replace a part of the network, or if the algorithm has its own methods for acting.
    """
    for name in ACTING:
        method = getattr(type(algorithm), name, None)
        if method is not None and not str(getattr(method, "__module__", "")).startswith(PACKAGE):
            raise NotPlain(f"{type(algorithm).__name__}.{name}")
    network, names = model.model, {part: name for name, part in model.named_modules()}
    Watched(network, trained=False)
    if isinstance(network, QNetwork):
        return _of_values(algorithm, network, names, spaces)
    if isinstance(network, PolicyNetwork):
        dense = _dense(names, spaces, network.torso, network.head)
        drawn: Any = network.distribution
        check_deviations(drawn)
        deviations = f"{names[drawn]}.log_std" if hasattr(drawn, "log_std") else None
        stores = isinstance(algorithm, ClippedPolicy)
        return compiled.DrawingPolicy(dense, drawn.draws(spaces.action), deviations, stores)
    if isinstance(network, MemberNetworks):
        members = _members(network, lambda seen, member: _dense(names, seen, member.torso, member.head))
        return compiled.TeamValuePolicy(members, compiled.TeamChoices(network.team.choices))
    if isinstance(network, ContinuousPolicy):
        return _noisy(algorithm, network, _box(names, spaces, network), spaces)
    if isinstance(network, TeamPolicy) and not network.team.choices:
        members = _members(network.members, partial(_box, names))
        return _noisy(algorithm, network.members.networks[0], members, spaces)
    raise NotPlain(type(network).__name__)


def _of_values(algorithm: Any, network: Any, names: Names, spaces: Spaces) -> CompiledPolicy:
    if type(network.head) is not Head:
        raise NotPlain(type(network.head).__name__)
    actions, dueling = compiled.EnumeratedActions(algorithm.owner, spaces.action), network.head.dueling
    scale = algorithm.reward_scale if getattr(algorithm, "actor_priorities", False) else None
    if not hasattr(network, "embedding"):
        return compiled.ValuePolicy(_dense(names, spaces, network.torso, network.head), actions, dueling, scale)
    torso = _chain(names, network.torso) if layers_of(network.torso)[0] else None
    cosines = torch.cos(network.midpoints[0, :, None] * network.frequencies).numpy()
    of_fractions = _chain(names, network.embedding), _chain(names, network.head), cosines
    quantiles = compiled.QuantileNetwork(compiled.Inputs(spaces), torso, *of_fractions)
    return compiled.ValuePolicy(quantiles, actions, dueling, scale, (algorithm.n_tau, algorithm.kappa))


def _noisy(algorithm: Any, policy: Any, network: Any, spaces: Spaces) -> CompiledPolicy:
    """Returns a noisy policy that acts by `network`; `policy` is its torch network or, in a team, one member's."""
    actions = compiled.ScaledActions(algorithm.owner, spaces.action)
    return compiled.NoisyBoxPolicy(network, actions, policy.actions.size, squashed=policy.outputs == 2)


def _box(names: Names, spaces: Spaces, policy: Any) -> compiled.DenseNetwork:
    """Returns a Box policy's network; it outputs actions in [-1, 1] or, for SAC, means and log standard deviations."""
    return _dense(names, spaces, policy.torso, policy.output, None if policy.outputs == 2 else "tanh")


def _members(networks: MemberNetworks, make: Callable[[Spaces, Any], compiled.DenseNetwork]) -> compiled.MemberNetworks:
    team = networks.team
    pairs = zip(team.groups, networks.networks, strict=True)
    groups = [(group.part, group.rows, make(group.spaces, network)) for group, network in pairs]
    return compiled.MemberNetworks(groups, team.spaces.stack)


def _dense(names: Names, spaces: Spaces, torso: Any, head: nn.Module, last: str | None = None) -> compiled.DenseNetwork:
    """Returns the network of a torso and a head; `last` is the activation after the outputs."""
    chain = _chain(names, torso, head, last=last)
    hidden = () if torso.names is None else {part.name for part in spaces.parts} - {*torso.names}
    return compiled.DenseNetwork(compiled.Inputs(spaces, tuple(hidden)), chain)


def _chain(names: Names, *parts: nn.Module, last: str | None = None) -> compiled.NamedChain:
    layers, modules = layers_of(*parts)
    layers[-1] = layers[-1]._replace(activation=layers[-1].activation or last)
    of_layers = [f"{names[module]}.{tensor}" for module in modules for tensor in ("weight", "bias")]
    return compiled.NamedChain(layers, of_layers)
