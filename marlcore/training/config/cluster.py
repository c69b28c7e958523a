"""The settings of a run whose actors work on several machines."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal

from ...checks import brief, is_number
from ...declared import By, Declared, Number, Whole


def _resources(label: str, value: Any) -> dict[str, float]:
    """Amounts by name. Raises ValueError, TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{label}: expected amounts by name, got {brief(value)}")
    if not all(isinstance(name, str) and is_number(amount) and amount > 0 for name, amount in value.items()):
        raise ValueError(f"{label}: expected numbers above 0 by name, got {brief(dict(value))}")
    return {name: float(amount) for name, amount in value.items()}


def _address(label: str, value: Any) -> Any:
    host, colon, port = str(value).rpartition(":")
    if value != "auto" and not (host and colon and port.isdigit() and "/" not in host):
        where = "of a Ray cluster that this machine is part of"
        raise ValueError(f"{label}: expected auto or host:port {where}, got {brief(value)}")
    return value


@dataclass(frozen=True)
class ClusterConfig(Declared):
    """Further machines, on Ray, whose actors work for the run; needs marlcore[cluster]."""

    address: Annotated[str | None, By(_address)] = None
    """Address of a running Ray cluster that this machine is part of: "auto" or host:port. None: one machine, no Ray."""
    nodes: Annotated[int, Whole(1)] = 1
    """Machines beside this one whose actors work for the run; this one has `actor.processes` of its own."""
    nodes_at_start: Annotated[int | None, Whole(0)] = None
    """Machines that must be there when the run starts; the others may join at any time. None: all."""
    actors_per_node: Annotated[int, Whole(1)] = 1
    """Actor processes on each of these machines, each of which steps `actor.envs` environment copies."""
    resources: Annotated[dict[str, float], By(_resources)] = field(default_factory=dict)
    """What Ray reserves on each machine, by name, such as CPU 8 highmem 1; a machine that lacks it is not used. Without
    an entry for CPU: one for each actor."""
    lease_seconds: Annotated[float, Number(0.2)] = 2.0
    """Seconds without a sign of life after which a machine is given up: its later rows are refused, and other machines
    take its share of the steps."""
    sync_seconds: Annotated[float, Number(0)] = 0.05
    """Seconds between looks for newer weights on each machine."""
    flush_seconds: Annotated[float, Number(0.001)] = 0.1
    """Longest time for which a machine collects rows before it sends them; few bytes wait a tenth of it."""
    lane_rows: Annotated[int, Whole(3)] = 1000
    """Rows of each environment copy that a machine keeps until they have arrived; beyond, the oldest are lost and
    counted, unless the learner holds actors back, who wait instead."""
    compress: Literal["lz4"] | None = None
    """Compression of rows between machines: "lz4" for frames on a slow network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = [field.name for field in fields(self) if getattr(self, field.name) != _usual(field)]
        if self.address is None and chosen:
            raise ValueError(f"address: expected auto or host:port with {chosen[0]}, got None")
        if self.nodes_at_start is not None and self.nodes_at_start > self.nodes:
            raise ValueError(f"nodes_at_start: expected at most nodes = {self.nodes}, got {self.nodes_at_start}")

    @property
    def seats(self) -> int:
        """Places for machines beside this one; 0 without a cluster."""
        return 0 if self.address is None else self.nodes

    @property
    def actors(self) -> int:
        """Actors of all machines beside this one."""
        return self.seats * self.actors_per_node

    @property
    def reserved(self) -> dict[str, float]:
        """What Ray reserves for the actors of a machine."""
        return {"CPU": float(self.actors_per_node)} | self.resources


def _usual(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else {}
