"""The settings of a training run. Every field is an option of `marlcore train`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from ..checks import check_whole

if TYPE_CHECKING:
    from ..processes import RestartPolicy
    from ..replay import RateLimiter

__all__ = ["ActorConfig", "Config", "ExplorationConfig", "LearnerConfig", "ReplayConfig", "SupervisionConfig"]


def _require(config: object, name: str, low: float, high: float = math.inf, whole: bool = True) -> None:
    """Raises ValueError unless low <= config.name <= high; integers become Python's."""
    value = getattr(config, name)
    if whole:
        check_whole(name, value, int(low), None if high == math.inf else int(high))
        object.__setattr__(config, name, int(value))  # JSON does not know NumPy's integers
        return
    bounds = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}: expected a number {bounds}, got {value!r}")


@dataclass(frozen=True)
class ActorConfig:
    """The processes that step environments."""

    processes: int = 1
    """Actor processes."""
    envs: int = 4
    """Environment copies that each actor steps in turn, choosing their actions in one batch."""
    sync_interval: int = 50
    """Rounds (one action in each copy) between checks for newer weights."""
    device: str = "cpu"
    """Device on which actors choose actions: "cpu", "cuda:0", "mps", or "auto" for the best available one."""

    def __post_init__(self) -> None:
        for name in ("processes", "envs", "sync_interval"):
            _require(self, name, 1)


@dataclass(frozen=True)
class LearnerConfig:
    """The processes that train, one for each agent."""

    batch_size: int = 64
    """Transitions in each update."""
    n_step: int = 3
    """Rewards in each return."""
    gamma: float = 0.99
    """Discount of one step."""
    warmup: int = 500
    """Transitions that an agent's replay must hold before training starts."""
    publish_interval: int = 10
    """Updates between publications of the weights."""
    publish_mode: Literal["snapshot", "double_buffer", "triple_buffer"] = "double_buffer"
    """Slots of shared memory for weights: 1, 2 or 3. More slots take memory; fewer make actors repeat copies."""
    log_interval: int = 200
    """Updates between reports of loss, epsilon, policy lag and rate."""
    checkpoint_interval: int = 10_000
    """Updates between checkpoints; the learner writes another one at the end."""
    device: str = "auto"
    """Device on which learners train: "cpu", "cuda:0", "mps", or "auto" for CUDA, then MPS, then the CPU."""
    device_per_agent: bool = False
    """With "auto" and several GPUs: assign the agents to them in turn."""
    threads: int = 1
    """CPU threads of each learner and actor."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "n_step", "warmup", "publish_interval", "log_interval", "threads"):
            _require(self, name, 1)
        _require(self, "checkpoint_interval", 1)
        _require(self, "gamma", 0.0, 1.0, whole=False)
        if self.publish_mode not in ("snapshot", "double_buffer", "triple_buffer"):
            raise ValueError(
                f"publish_mode: expected snapshot, double_buffer or triple_buffer, got {self.publish_mode!r}"
            )


@dataclass(frozen=True)
class ReplayConfig:
    """Each agent's replay buffer."""

    capacity: int = 100_000
    """Rows of an agent's replay, over all environment copies."""
    stack: int = 1
    """Frames in an observation."""
    pad: Literal["repeat", "zero"] = "repeat"
    """Padding of a stack before an episode's first frame: repeat that frame, or zeros."""
    save: bool = False
    """Save each replay with its learner's checkpoints, so that a resumed run starts with its rows."""

    def __post_init__(self) -> None:
        _require(self, "capacity", 1)
        _require(self, "stack", 1)
        if self.pad not in ("repeat", "zero"):
            raise ValueError(f"pad: expected repeat or zero, got {self.pad!r}")


@dataclass(frozen=True)
class ExplorationConfig:
    """Epsilon, the probability of a random action; the learner decays it and publishes it with the weights."""

    epsilon_start: float = 1.0
    """Epsilon at the first update."""
    epsilon_min: float = 0.02
    """Lower limit of epsilon."""
    epsilon_decay: float = 0.05
    """Fraction of epsilon removed at each decay."""
    epsilon_decay_freq: int = 100
    """Updates between decays."""

    def __post_init__(self) -> None:
        for name in ("epsilon_start", "epsilon_min", "epsilon_decay"):
            _require(self, name, 0.0, 1.0, whole=False)
        _require(self, "epsilon_decay_freq", 1)


@dataclass(frozen=True)
class SupervisionConfig:
    """The treatment of workers that die, fail or hang; in async mode."""

    max_restarts: int = 3
    """Restarts of each worker within the window; one more failure ends the run."""
    window: float = 600.0
    """Seconds for which a failure counts."""
    backoff: float = 0.5
    """Seconds before a worker's first restart, doubled before each further one in the window; at most 30."""
    actor_timeout: float = 60.0
    """Seconds without a heartbeat after which an actor is killed and restarted; at least 120 while it starts."""
    learner_timeout: float = 120.0
    """The same for learners, which may take longer: they compile and write checkpoints."""
    serial_fallback: bool = True
    """If the system can start no process, do all work in this one, as in serial mode."""

    def __post_init__(self) -> None:
        _require(self, "max_restarts", 0)
        for name in ("window", "backoff"):
            _require(self, name, 0.0, whole=False)
        for name in ("actor_timeout", "learner_timeout"):
            _require(self, name, 1.0, whole=False)

    @property
    def restarts(self) -> RestartPolicy:
        """The supervisor's restart policy."""
        from ..processes import RestartPolicy  # here, so that settings load even if the core does not

        return RestartPolicy(self.max_restarts, self.window, self.backoff)


@dataclass(frozen=True)
class Config:
    """A training run, such as Config(total_steps=50_000, learner=LearnerConfig(gamma=0.9)).

    Raises: ValueError, TypeError: a setting is out of range or of another kind, in one line.
    """

    total_steps: int = 300_000
    """Steps of the whole run; a step is one action of one agent."""
    seed: int = 0
    """Seed of all randomness; in serial mode the same seed gives the same run."""
    mode: Literal["async", "serial"] = "async"
    """async: one process for each actor and each agent's learner. serial: the same work in turn in one process."""
    updates_per_step: float | None = 0.1
    """Updates of each learner per step of its agent after the warm-up; None lets actors and learners run free."""
    updates_tolerance: int = 32
    """Updates that a learner may lag behind updates_per_step before its actors wait, or lead before it waits itself."""
    run_dir: str | None = None
    """Directory for the results, new or empty. By default runs/<date and time>."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)

    def __post_init__(self) -> None:
        self._check_parts()
        _require(self, "total_steps", 1)
        _require(self, "seed", 0, 2**63)
        if self.mode not in ("async", "serial"):
            raise ValueError(f"mode: expected async or serial, got {self.mode!r}")
        self._check_ratio()
        self._check_rows()

    def _check_parts(self) -> None:
        for one in fields(self):
            part, value = one.default_factory, getattr(self, one.name)
            if isinstance(part, type) and not isinstance(value, part):
                article = "an" if part.__name__[0] in "AEIOU" else "a"
                raise TypeError(f"{one.name}: expected {article} {part.__name__}, got {value!r}")

    def _check_rows(self) -> None:
        replay, lanes = self.replay, self.lanes
        if replay.capacity // lanes < replay.stack + self.learner.n_step:
            raise ValueError(
                f"replay.capacity: expected at least {lanes * (replay.stack + self.learner.n_step)}, so that a lane "
                f"holds stack + n_step = {replay.stack} + {self.learner.n_step} rows; "
                f"rows of a lane are capacity / (processes x envs) = {replay.capacity} / {lanes}, "
                f"got {replay.capacity}"
            )
        rows = replay.capacity // lanes * lanes
        if self.learner.warmup > rows:
            raise ValueError(
                f"learner.warmup: expected at most the {rows} rows that replay.capacity gives a replay, "
                f"got {self.learner.warmup}"
            )

    def _check_ratio(self) -> None:
        _require(self, "updates_tolerance", 1)
        if self.updates_per_step is not None:
            _require(self, "updates_per_step", 1e-6, 1e6, whole=False)
        elif self.mode == "serial":
            raise ValueError("updates_per_step: expected a number in serial mode, got None")

    @property
    def limiter(self) -> RateLimiter | None:
        """The rate limiter between an agent's learner and its actors; None when they run free."""
        from ..replay import RateLimiter

        if self.updates_per_step is None:
            return None
        samples_per_insert = self.updates_per_step * self.learner.batch_size
        # Both sides must never wait at once: a row must fit, in serial mode the rows of every environment copy.
        least = samples_per_insert
        if self.mode == "serial":
            least = samples_per_insert * (self.lanes + 1) + self.learner.batch_size
        tolerance = max(self.updates_tolerance * self.learner.batch_size, least)
        return RateLimiter(samples_per_insert, self.learner.warmup, tolerance)

    @property
    def lanes(self) -> int:
        """Lanes of each agent's replay: one for each environment copy of each actor."""
        return self.actor.processes * self.actor.envs

    def to_dict(self) -> dict[str, Any]:
        """A form ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Config:
        """The configuration from which `to_dict` made `plain`; missing fields get their defaults.

        Raises ValueError: a value is out of range.
        """
        given: dict[str, Any] = {}
        for one in fields(cls):
            value = plain.get(one.name, MISSING)
            if value is not MISSING:
                part = one.default_factory
                given[one.name] = value if part is MISSING else type(part())(**value)
        return cls(**given)
