"""The settings of a training run. Every field is an option of `marlcore train`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from ..checks import absolute, brief, check_type, did_you_mean, short
from ..declared import Declared, Whole, changed, flattened, hints_of
from .cluster import ClusterConfig
from .schedules import Constant, Schedule, Scheduled, Stages, ascending
from .sections import (
    ActorConfig,
    Count,
    EvaluationConfig,
    ExplorationConfig,
    LearnerConfig,
    MetricsConfig,
    ReplayConfig,
    StopConfig,
    SupervisionConfig,
    distinct_names,
    updates_per_step,
)
from .self_play import SelfPlayConfig, absolute_anchors

if TYPE_CHECKING:
    from ..replay import RateLimiter

    PolicyOf: TypeAlias = Mapping[str, str] | Callable[[str], str]
else:
    PolicyOf = dict[str, str]  # the type that the command line reads


SECTIONS = {"learners": "learner", "replays": "replay", "explorations": "exploration", "ratios": "updates_per_step"}
BY_POLICY = {"learners": LearnerConfig, "replays": ReplayConfig, "explorations": ExplorationConfig}
RUN_WIDE = {  # settings that all policies share
    "learner": ("processes", "threads"),
    "replay": ("stack", "pad", "save", "clear_at_stage", "mixture", "path", "durable"),
}


def _by_policy(label: str, sections: Any) -> Any:
    kind = BY_POLICY[label]
    check_type(label, sections, Mapping, expected="a dict")
    for policy, section in sections.items():
        check_type(label, section, kind, expected=f"a {kind.__name__} for {brief(policy)}")
    return dict(sections)


def _ratios(label: str, ratios: Any) -> Any:
    check_type(label, ratios, Mapping, expected="updates_per_step by policy")
    return {
        policy: None if ratio is None else updates_per_step(f"{label}.{short(policy)}", ratio)
        for policy, ratio in ratios.items()
    }


@dataclass(frozen=True)
class Config(Declared):
    """The settings of a training run, such as Config(total_steps=50_000, learner=LearnerConfig(gamma=0.9)).

    Raises ValueError or TypeError, in one line, if a setting is out of range or has another type.
    """

    total_steps: Count = 300_000
    """Steps of the whole run; a step is one action of one agent."""
    seed: Annotated[int, Whole(0, 2**63)] = 0
    """Seed of all randomness; in serial mode the same seed gives the same run."""
    mode: Literal["async", "serial"] = "async"
    """async: one process for each actor and each agent's learner. serial: the same work in turn in one process."""
    updates_per_step: Annotated[Scheduled | float | None, updates_per_step] = 0.1
    """Updates of each learner per step of its agent after the warm-up: a number, or a schedule, such as "linear(0.1, 1,
    100000)", whose sum over the steps is the number of updates. None lets actors and learners run free."""
    updates_tolerance: Count = 32
    """Updates by which a learner may be behind updates_per_step before its actors wait; a learner is never ahead. While
    a schedule is below its highest number, actors wait after fewer updates."""
    run_dir: str | None = None
    """A new or empty directory for the results: a path, or an address of fsspec, such as s3://bucket/demo, to which the
    results are copied (marlcore[remote]). By default runs/<date and time>."""
    stages: Annotated[tuple[int, ...], ascending] = ()
    """Steps of the run at which its stages 1, 2, ... begin. Learners publish the number of the stage with their
    weights, and an algorithm's `act` finds it in `explore`."""
    stage_names: Annotated[tuple[str, ...], distinct_names] = ()
    """Names of the stages 1, 2, ..., for replay.clear_at_stage; empty, or a name for each stage."""
    policies: PolicyOf | None = None
    """The policy of each agent, by agent; agents with the same policy share it. By default each agent has its own. In
    Python also a function of the agent's name."""
    teams: PolicyOf | None = None
    """The team of each member, by agent: a team acts as one agent, of the team's name; see docs/guides/teams.md. By
    default all agents are in the team "team" if an algorithm trains teams, otherwise there are no teams. In Python also
    a function of the agent's name."""
    learners: Annotated[dict[str, LearnerConfig], _by_policy] = field(default_factory=dict)
    """By policy, settings of its learner that replace `learner`. In a file, and on the command line
    (`--learners.guard.n-step 1`), missing settings are taken from `learner`; `processes` and `threads` always come
    from `learner`."""
    replays: Annotated[dict[str, ReplayConfig], _by_policy] = field(default_factory=dict)
    """By policy, settings of its replay that replace those of `replay`, given like `learners`: capacity, priorities and
    hindsight. All other settings are taken from `replay`."""
    explorations: Annotated[dict[str, ExplorationConfig], _by_policy] = field(default_factory=dict)
    """By policy, settings of its exploration that replace `exploration`, given like `learners`."""
    ratios: Annotated[dict[str, Scheduled | float | None], _ratios] = field(default_factory=dict)
    """By policy, updates per step that replace `updates_per_step`."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "serial" and self.updates_per_step is None:
            raise ValueError("updates_per_step: expected a number in serial mode, got None")
        if self.cluster.seats and self.mode == "serial":
            raise ValueError("mode: expected async when cluster.address is set, got 'serial'")
        if self.cluster.learners and self.learner.processes is not None:
            raise ValueError(
                f"learner.processes: expected None when cluster.learners is set, got {self.learner.processes}"
            )
        if self.cluster.learners and self.self_play.pool:
            raise ValueError(f"self_play.pool: expected 0 when cluster.learners is set, got {self.self_play.pool}")
        if self.cluster.seats and self.self_play.roles:
            raise ValueError(f"self_play.roles: expected none when cluster.address is set, got {self.self_play.roles}")
        if self.stage_names and len(self.stage_names) != len(self.stages):
            raise ValueError(f"stage_names: expected {len(self.stages)} names of stages, got {brief(self.stage_names)}")
        if self.replay.durable and self.replay.save:
            raise ValueError("replay.save: expected False when replay.durable is set, got True")
        if self.replay.durable and self.replay.path is None:
            raise ValueError("replay.durable: expected False without replay.path, got True")
        cleared = self.replay.clear_at_stage
        for name in () if isinstance(cleared, bool) else cleared:
            if name not in self.stage_names:
                got = f"{brief(name)}{did_you_mean(name, self.stage_names)}"
                raise ValueError(f"replay.clear_at_stage: expected names of {brief(self.stage_names)}, got {got}")
        if self.stop.judges and self.stop.of_evaluation and not self.evaluation.evaluates:
            raise ValueError(
                "stop.metric: expected a metric of a run without evaluations (evaluation.interval and seconds are 0), "
                f"got {brief(self.stop.metric)}"
            )

    def of(self, policy: str) -> Config:
        """Returns the settings that apply to a policy: its own sections replace the run's."""
        sections: dict[str, Any] = {
            usual: getattr(self, by)[policy] for by, usual in SECTIONS.items() if policy in getattr(self, by)
        }
        for name in sections.keys() & RUN_WIDE.keys():
            sections[name] = replace(sections[name], **{n: getattr(getattr(self, name), n) for n in RUN_WIDE[name]})
        return replace(self, **{**sections, **{by: {} for by in SECTIONS}}) if sections else self

    def learner_of(self, policy: str) -> LearnerConfig:
        return self.learners.get(policy, self.learner)

    def timeout_of(self, policy: str) -> float:
        """Returns the seconds without a heartbeat after which a policy's learner is restarted."""
        return self.learner_of(policy).timeout or self.supervision.learner_timeout

    def check_policies(self, names: Sequence[str]) -> None:
        """Raises ValueError if a setting by policy names a policy that is not among `names`."""
        by_policy = {name: getattr(self, name) for name in SECTIONS} | {"cluster.learners": self.cluster.learners}
        for label, given in by_policy.items():
            if wrong := given.keys() - names:
                raise ValueError(f"{label}: expected the policies {names}, got {brief(min(wrong))}")

    def limiter(self, policy: str, lanes: int) -> RateLimiter | None:
        """Returns the rate limiter between a policy's learner and its actors; None if they run free."""
        from ..replay import RateLimiter

        learner, pace = self.learner_of(policy), self.of(policy).pace
        if pace is None:
            return None
        slowest, fastest = pace.bounds
        samples_per_insert = fastest * learner.batch_size  # at slower paces, a batch counts more: see `limit_to`
        # The learner and its actors must never wait for each other, even in one thread. So while a batch is almost due,
        # actors may add a row to every lane.
        least = samples_per_insert * (lanes + 1) + learner.batch_size * fastest / slowest
        tolerance = max(self.updates_tolerance * learner.batch_size, least)
        return RateLimiter(samples_per_insert, learner.warmup, tolerance, lead=0.0)

    def is_free(self, policy: str) -> bool:
        """Whether a policy's learner and actors run free, without a rate limiter."""
        return self.of(policy).pace is None

    @property
    def pace(self) -> Schedule | None:
        """The updates per step as a schedule; None if actors and learners run free."""
        updates = self.updates_per_step
        return None if updates is None else Schedule.from_value("updates_per_step", updates)

    @property
    def offline(self) -> bool:
        """Whether the run has no actors: its learners train on recorded data, and each update counts as a step."""
        return not self.actors

    @property
    def actors(self) -> int:
        """The number of the run's actor processes on all machines."""
        return self.actor.processes + self.cluster.actors

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The configured schedules, by name, of numbers that learners publish with weights; see `schedules_of`."""
        exploration = self.exploration
        chosen: dict[str, Any] = {} if exploration.epsilon is None else {"epsilon": exploration.epsilon}
        return chosen | dict(exploration.schedules) | ({"stage": Stages(self.stages)} if self.stages else {})

    @property
    def clearing_stages(self) -> frozenset[int]:
        """The numbers of the stages at whose beginning learners stop drawing earlier transitions."""
        cleared, numbers = self.replay.clear_at_stage, range(1, len(self.stages) + 1)
        if isinstance(cleared, bool):
            return frozenset(numbers if cleared else ())
        return frozenset(1 + self.stage_names.index(name) for name in cleared)

    @property
    def lanes(self) -> int:
        """The number of lanes of an agent in its policy's replay: one for each environment copy of each actor."""
        return self.actors * self.actor.envs

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as a dict ready for JSON; schedules are text."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def with_absolute_paths(self) -> Config:
        """Returns the settings with absolute paths, valid in any working directory; a run_dir of None stays None."""
        run_dir = self.run_dir and str(absolute(self.run_dir))
        replay = replace(self.replay, path=self.replay.path and str(absolute(self.replay.path)))
        self_play = replace(self.self_play, anchors=absolute_anchors(self.self_play.anchors))
        return replace(self, run_dir=run_dir, replay=replay, self_play=self_play)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Config:
        """Makes settings from a result of `to_dict`; missing fields get their defaults. Raises ValueError."""
        names = {field.name for field in fields(cls)}
        return cls().changed(by_dotted_name({name: plain[name] for name in plain if name in names}))

    def changed(self, values: Mapping[str, Any]) -> Config:
        """Replaces settings by dotted name, such as learners.guard.n_step. Raises ValueError, TypeError."""
        by_policy = {name for name in values if "." in name and name.partition(".")[0] in BY_POLICY}
        config = changed(self, {name: values[name] for name in values if name not in by_policy})
        for label in filter(by_policy.__contains__, values):
            prefix, _, name = label.rpartition(".")
            by, _, policy = prefix.partition(".")
            sections = getattr(config, by)
            usual, where = sections.get(policy, getattr(config, SECTIONS[by])), f"{by}.{short(policy)}."
            section = changed(usual, {name: values[label]}, where)
            config = changed(config, {by: {**sections, policy: section}})
        return config


def by_dotted_name(plain: Any) -> dict[str, Any]:
    """Flattens nested settings to dotted names: learners.guard.n_step. Raises ValueError as `flattened` does."""
    values = dict(flattened(plain, Config))
    for by, kind in BY_POLICY.items():
        if not isinstance(sections := values.pop(by, {}), Mapping):
            raise ValueError(f"{by}: expected settings by policy, got {brief(sections)}")
        for policy, section in sections.items():
            values |= flattened(section, kind, f"{by}.{policy}.")
    return values


def hints_by_policy(names: Iterable[str]) -> dict[str, Any]:
    """Returns, by dotted name, the types of all settings in the policies' sections that `names` belong to."""
    prefixes = {(name.partition(".")[0], name.rpartition(".")[0]) for name in names if name.count(".") > 1}
    each = (hints_of(BY_POLICY[by], f"{prefix}.") for by, prefix in prefixes if by in BY_POLICY)
    return {name: hint for hints in each for name, hint in hints.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.value if isinstance(value, Constant) else str(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {name: _plain(inside) for name, inside in value.items()} if isinstance(value, dict) else value
