"""Makes the network by which a policy acts: the policy's compiled form or its torch model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from ..config import AssignedPolicy, Config
from ..interfaces import CompiledPolicy
from ..weights import ParameterStore, Subscriber

if TYPE_CHECKING:
    from .torch_network import TorchNetwork

Network: TypeAlias = "CompiledPolicy | TorchNetwork"


def network_of(
    policy: AssignedPolicy, config: Config, device: Any, store: ParameterStore
) -> tuple[Network, Subscriber]:
    """Makes the untrained network by which a policy acts, and a subscriber that keeps its weights up to date.

    `device` is a torch.device; a compiled network does not use it.
    """
    if policy.compiled is not None:
        compiled: Any = copy.deepcopy(policy.compiled)
        return compiled, store.subscriber(compiled)
    from .model import build_model  # these import torch
    from .torch_network import TorchNetwork

    model = build_model(policy, config).acting.to(device)
    return TorchNetwork(policy.algorithm, model, device), store.subscriber(model)
