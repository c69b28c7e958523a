"""The machines of a run: this one alone, or also a cluster's, which run some actors and learners."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..config import AssignedPolicy, crews, learner_names
from ..memory import SegmentHandle
from ..processes import Control, Interrupts, Telemetry
from ..record import Hold, RunDirectory
from ..self_play import make_beside_anchors
from ..weights import ParameterStore
from .async_run import Remote
from .memory import Memory, create_transitions
from .spec import RunSpec

if TYPE_CHECKING:
    from ..cluster.nodes import Uplink

MakeStore: TypeAlias = Callable[[int], ParameterStore]  # the store's versions exceed the argument and any checkpoint's


@dataclass
class OneMachine:
    """Places a run on this machine alone. The stack closes all objects made for the run."""

    stack: ExitStack
    spec: RunSpec
    directory: RunDirectory
    learners: Sequence[str] = ()  # learner processes on other machines
    holds: Mapping[str, Hold] = field(default_factory=dict)  # by policy that learns there: the lock on its checkpoint

    def place(self, policy: AssignedPolicy, make_store: MakeStore) -> tuple[SegmentHandle, SegmentHandle]:
        """Returns the handles of a policy's transitions and of its weights. Raises ValueError, SharedMemoryFull."""
        transitions, version = self.spec.recorded.get(policy.name), 0
        if transitions is None:
            saved = self.directory.replay_path(policy.name)
            transitions, version = create_transitions(self.stack, policy, self.spec.config, saved)
        return transitions, make_store(version).handle

    def sweep(self) -> None:
        """Removes from other machines the remains of an earlier part of the run that was killed."""

    def begin(self, stack: ExitStack, memory: Memory, control: Control, telemetry: Telemetry) -> Remote:
        """Starts the run's roles on other machines, until the stack ends them."""
        return Remote()


class Cluster(OneMachine):
    """Places a run on this machine and on a cluster. Raises ValueError if no cluster answers or a machine is unfit."""

    def __init__(
        self, stack: ExitStack, spec: RunSpec, directory: RunDirectory, environment: str, interrupts: Interrupts
    ) -> None:
        from ..cluster.nodes import RayCluster, try_learner  # imported here, so that a run on one machine needs no Ray

        config, token = spec.config, secrets.token_hex(8)
        learners = learner_names(config, [name for name in spec.names if name in config.cluster.learners])
        holds = {name: Hold(directory.checkpoint_path(name), token, 0) for name in config.cluster.learners}
        super().__init__(stack, spec, directory, [*learners], holds)
        self._uplinks: dict[str, Uplink] = {}
        trials = {}
        for name, hold in holds.items():
            hold.take()
            trials[name] = partial(try_learner, hold, config.learner_of(name).device, config.replay.path)
        make: Any = spec.env_fn
        if anchors := [*config.self_play.anchors]:
            make = partial(make_beside_anchors, make, anchors)
        self._cluster = stack.enter_context(RayCluster(config.cluster, make, environment, interrupts, trials))

    def place(self, policy: AssignedPolicy, make_store: MakeStore) -> tuple[SegmentHandle, SegmentHandle]:
        if policy.name not in self.holds:
            return super().place(policy, make_store)
        from ..cluster.nodes import Uplink

        config, crew, store = self.spec.config, crews(self.spec.config)[0], make_store(0)
        uplink = Uplink(self.stack, policy, config, crew, store.description, config.cluster.seats, 1)
        store.close()  # its learner's machine has its own store
        self._uplinks[policy.name] = uplink
        return uplink.transitions, uplink.weights

    def sweep(self) -> None:
        self._cluster.sweep()

    def begin(self, stack: ExitStack, memory: Memory, control: Control, telemetry: Telemetry) -> Remote:
        from ..cluster.nodes import Controller

        return Controller(stack, self._cluster, self.spec, memory, control, telemetry, self._uplinks)
