"""The settings of a run on several machines."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from ..checks import brief, check_type, is_number
from ..declared import Declared, Number, Whole


def _resources(label: str, value: Any) -> dict[str, float]:
    check_type(label, value, Mapping, expected="amounts by name")
    named = all(isinstance(name, str) and name for name in value)
    if not named or not all(is_number(n) and 0 < n < 2**53 and (n < 1 or n % 1 == 0) for n in value.values()):
        expected = "expected numbers above 0 by name, whole if above 1"
        raise ValueError(f"{label}: {expected}, got {brief(dict(value))}")
    return {name: float(amount) for name, amount in value.items()}


def _by_policy(label: str, value: Any) -> dict[str, dict[str, float]]:
    """Returns each policy's amounts of resources, which may be given as text, such as GPU=1,CPU=4."""
    check_type(label, value, Mapping, expected="resources by policy")
    try:
        read = {policy: _read(each) if isinstance(each, str) else each for policy, each in value.items()}
    except ValueError:
        raise ValueError(f"{label}: expected resources such as GPU=1,CPU=4, got {brief(dict(value))}") from None
    return {policy: _resources(label, each) for policy, each in read.items()}


def _read(text: str) -> dict[str, float]:
    parts = [part.split("=") for part in text.split(",")]
    read = {name.strip(): float(amount) for name, amount in parts}
    if len(read) < len(parts):
        raise ValueError(text)
    return read


def _address(label: str, value: Any) -> Any:
    host, _, port = str(value).rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 2**16
    if value != "auto" and not (host and is_port and "/" not in host):
        expected = "expected auto or host:port of a Ray cluster that this machine is part of"
        raise ValueError(f"{label}: {expected}, got {brief(value)}")
    return value


if TYPE_CHECKING:
    Learners: TypeAlias = Mapping[str, str | Mapping[str, float]]
else:
    Learners = dict[str, str]  # the type that the command line reads


@dataclass(frozen=True)
class ClusterConfig(Declared):
    """Further machines whose actors and learners work for the run, by Ray; needs marlcore[cluster]."""

    address: Annotated[str | None, _address] = None
    """Address of a running Ray cluster that this machine is part of: "auto" or host:port. None: one machine, no Ray."""
    nodes: Annotated[int, Whole(1)] = 1
    """Number of further machines whose actors work for the run; this machine has `actor.processes` actors."""
    nodes_at_start: Annotated[int | None, Whole(0)] = None
    """Number of these machines that must be ready when the run starts; the others may join later. None: all."""
    actors_per_node: Annotated[int, Whole(1)] = 1
    """Number of actor processes on each of these machines; each process steps `actor.envs` environment copies."""
    resources: Annotated[dict[str, float], _resources] = field(default_factory=dict)
    """Amounts of resources, by name, that Ray reserves on each machine, such as CPU 8 highmem 1; a machine that lacks
    them is not used. By default Ray reserves one CPU for each actor."""
    learners: Annotated[Learners, _by_policy] = field(default_factory=dict)
    """Policies whose learner and replay run on another machine, each with the resources that Ray reserves there, such
    as agent_0 GPU=1,CPU=4; in Python and files also {"agent_0": {"GPU": 1}}. By default Ray reserves one CPU. All other
    learners run on this machine. The run's directory must be on a shared file system."""
    lease_seconds: Annotated[float, Number(0.5)] = 2.0
    """Seconds without a message after which a machine counts as lost: its later rows are refused, and other machines
    take its share of the steps."""
    sync_seconds: Annotated[float, Number(0)] = 0.05
    """Seconds between checks for newer weights on each machine."""
    flush_seconds: Annotated[float, Number(0.001, 60)] = 0.1
    """Longest time, at most 60 s, for which a machine collects rows before it sends them; a small amount of rows waits
    only a tenth of that time."""
    lane_rows: Annotated[int, Whole(3)] = 1000
    """Rows that a machine keeps for each environment copy until they have arrived. If there are more, the oldest rows
    are lost and counted; but actors that must not outrun their learner (updates_per_step) wait instead."""
    compress: Literal["lz4"] | None = None
    """Compression of rows between machines: "lz4" for frames on a slow network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {each.name: {} if each.default is MISSING else each.default for each in fields(self)}
        chosen = [name for name in defaults if getattr(self, name) != defaults[name]]
        if self.address is None and chosen:
            raise ValueError(f"address: expected auto or host:port for {chosen[0]}, got None")
        if self.nodes_at_start is not None and self.nodes_at_start > self.nodes:
            raise ValueError(f"nodes_at_start: expected at most nodes = {self.nodes}, got {self.nodes_at_start}")

    @property
    def seats(self) -> int:
        """The largest number of other machines, `nodes`; 0 without a cluster."""
        return 0 if self.address is None else self.nodes

    def reserved_for(self, policy: str) -> dict[str, float]:
        """Returns the amounts of resources that Ray reserves for a policy's learner on another machine."""
        return {"CPU": 1.0, **self.learners[policy]}  # type: ignore[dict-item]  # `_by_policy` has parsed text

    @property
    def actors(self) -> int:
        """The number of actors on all other machines."""
        return self.seats * self.actors_per_node

    @property
    def reserved(self) -> dict[str, float]:
        """The amounts of resources that Ray reserves for the actors of a machine."""
        return {"CPU": float(self.actors_per_node)} | self.resources
