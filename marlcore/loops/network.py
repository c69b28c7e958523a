"""The network by which a policy acts: its compiled form, or its model of torch."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from ..config import AssignedPolicy, Config
from ..interfaces import CompiledPolicy
from ..weights import ParameterStore, Subscriber

if TYPE_CHECKING:
    from .torch_network import TorchNetwork

Network: TypeAlias = "CompiledPolicy | TorchNetwork"


def network_of(policy: AssignedPolicy, config: Config, device: Any) -> Network:
    """Makes the untrained network by which a policy acts; `device` is torch's, unused by a compiled one."""
    if policy.compiled is not None:
        return copy.deepcopy(policy.compiled)
    from .model import build_model  # these import torch
    from .torch_network import TorchNetwork

    return TorchNetwork(policy.algorithm, build_model(policy, config).acting.to(device), device)


def subscriber_of(network: Network, store: ParameterStore) -> Subscriber:
    """Returns a subscriber that keeps the network's weights up to date."""
    local: Any = getattr(network, "model", network)
    return store.subscriber(local)
