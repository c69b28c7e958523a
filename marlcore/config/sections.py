"""The sections of a run's settings, each of which checks its own values; `Config` checks how they fit together."""

import math
import os
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ..checks import brief, check_type, did_you_mean, is_number, short
from ..declared import Declared, Number, Whole
from ..observations import Pad
from ..references import is_importable
from .schedules import Constant, Custom, Exponential, Schedule, Scheduled, check_free, is_custom

EPSILON = Exponential(1.0, 0.02, rate=0.95, every=100, of="updates")
EVALUATED = "eval_"  # the prefix of the names of an evaluation's metrics
SINKS = ("csv", "tensorboard", "wandb")

Count = Annotated[int, Whole(1)]
Seconds = Annotated[float, Number(0)]
Timeout = Annotated[float, Number(1)]
RATIO = Number(1e-6, 1e6)


def shares(label: str, value: Any) -> dict[str, float]:
    """Returns shares by name. Raises ValueError or TypeError unless they are numbers of at least 0 whose sum is 1."""
    check_type(label, value, Mapping, expected="shares by name")
    right = all(is_number(number) and number >= 0 for number in value.values())
    if not right or (value and not math.isclose(sum(value.values()), 1.0, abs_tol=1e-6)):
        raise ValueError(f"{label}: expected numbers of at least 0 whose sum is 1, got {brief(dict(value))}")
    return {name: float(share) for name, share in value.items()}


def distinct_names(label: str, names: Any, expected: str = "") -> tuple[str, ...]:
    """Returns a tuple of names. Raises ValueError if it is something else, or if a name occurs twice."""
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{label}: expected {expected}a tuple of names of stages, got {brief(names)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{label}: expected each name once, got {brief(names)}")
    return names


def flag_or_names(label: str, value: Any) -> bool | tuple[str, ...]:
    return value if isinstance(value, bool) else distinct_names(label, value, "True, False or ")


def existing_directory(label: str, path: Any) -> Any:
    if not os.path.isdir(path):
        raise ValueError(f"{label}: expected an existing directory, got {brief(path)}")
    return path


def probability(label: str, value: Any) -> Schedule:
    """Makes a schedule of probabilities. Raises ValueError if a number of it, or a function's first, is none."""
    schedule = Schedule.from_value(label, value)
    bounds = (schedule.at(0),) if isinstance(schedule, Custom) else schedule.bounds  # a function may refuse counts
    for number in bounds:
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{label}: expected a probability, got {number:g} from {schedule}")
    return schedule


def updates_per_step(label: str, value: Any) -> Schedule | float:
    """Returns a number or a schedule. Raises ValueError for all else, and for functions, whose range is unknown."""
    if is_custom(value) or isinstance(value, Custom) or callable(value):
        raise ValueError(f"{label}: expected a number or a schedule other than a function, got {brief(value)}")
    if isinstance(value, str):
        value = Schedule.from_value(label, value)
    bounds = value.bounds if isinstance(value, Schedule) else (value,)
    lowest, *_ = (RATIO(label, bound) for bound in bounds)
    return value if isinstance(value, Schedule) and not isinstance(value, Constant) else lowest


def named_schedules(label: str, value: Any) -> dict[str, Schedule]:
    """Returns schedules by name. Raises ValueError or TypeError if a value is not a schedule or a name is reserved."""
    check_type(label, value, Mapping, expected="schedules by name")
    check_free(label, value, "epsilon")
    return {name: Schedule.from_value(f"{label}.{short(name)}", schedule) for name, schedule in value.items()}


@dataclass(frozen=True)
class Reference:
    """A rule for text that is one of the options, or module:name of an object that can be imported."""

    expected: str
    options: tuple[str, ...] = ()

    def __call__(self, label: str, name: str) -> str:
        if name not in self.options and not is_importable(name):
            hint = did_you_mean(name, self.options)
            raise ValueError(f"{label}: expected {self.expected}, got {brief(name)}{hint}")
        return str(name)


def device_names(label: str, value: Any) -> str | tuple[str, ...]:
    """Returns the name of a device, or a tuple of several names. Raises ValueError for anything else."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{label}: expected a device, or a tuple of devices, got {brief(value)}")
    return names if len(names) > 1 else names[0]


def sink_names(label: str, names: Any) -> tuple[str, ...]:
    """Returns the names of sinks.

    Raises ValueError or TypeError if csv is missing, a sink is named twice, or an item is not a sink's name.
    """
    listed = isinstance(names, (tuple, list, Set, Mapping))
    if not listed or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{label}: expected names of sinks, got {brief(names)}")
    sinks = tuple(Reference(f"{', '.join(SINKS)} or module:Class", SINKS)(label, name) for name in names)
    if "csv" not in sinks or len(set(sinks)) < len(sinks):
        got = brief(" ".join(sinks))
        raise ValueError(f"{label}: expected each sink once and csv, the run's own record, among them, got {got}")
    return sinks


@dataclass(frozen=True, kw_only=True)
class ActorConfig(Declared):
    """The processes that step environments."""

    processes: Annotated[int, Whole(0, most=4096)] = 1
    """Number of actor processes; 0 in a run of `train_offline`, at least 1 in all other runs."""
    envs: Count = 4
    """Environment copies that each actor steps together, choosing their actions in one batch."""
    sync_interval: Count = 50
    """Rounds (one action in each copy) between checks for newer weights. On-policy actors check in every round."""
    max_policy_lag: Annotated[int | None, Whole(0)] = None
    """Versions by which an actor's weights may be behind the newest; an actor further behind pulls before it acts.
    None: an actor pulls only at its checks. On-policy actors always act with the newest weights. The metric
    `policy_lag` measures something else: the age of the rows that the learner draws."""
    device: Annotated[str | tuple[str, ...], device_names] = "cpu"
    """Device on which actors choose actions: "cpu", "cuda:0", "mps", or "auto" for the best available one. Several,
    such as cuda:0 cuda:1, are dealt out to the processes in turn; the evaluator takes the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.devices) > max(self.processes, 1):
            raise ValueError(f"device: expected no more devices than {self.processes} processes, got {self.device}")

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.device,) if isinstance(self.device, str) else self.device

    def device_of(self, process: int) -> str:
        return self.devices[process % len(self.devices)]


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(Declared):
    """The processes that train the policies."""

    processes: Annotated[int | None, Whole(1, most=4096)] = None
    """Learner processes, among which the policies are dealt out; None: one for each policy."""
    batch_size: Count = 64
    """Transitions in each update."""
    n_step: Count = 3
    """Rewards in each return."""
    gamma: Annotated[float, Number(0, 1)] = 0.99
    """Discount of one step."""
    warmup: Count = 500
    """Transitions that a policy's replay must hold before training starts."""
    engine: Literal["auto", "torch", "compiled"] = "auto"
    """The engine of the policy's networks, in updates and in actors: "compiled" has its own kernels for fully connected
    layers on the CPU, which are several times as fast where layers are small; "torch" computes any network. "auto"
    chooses compiled where it supports the network and is faster."""
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    """Mode of `torch.compile` for the learner's model. With "reduce-overhead" and "max-autotune" on a CUDA device, CUDA
    graphs make the steps of DQN, PPO, MAPPO, SAC and TD3; other algorithms have torch's graphs of the model.
    Compiling takes half a minute at each start, and pays on GPUs; on a CPU it makes small networks slower."""
    obs_norm: Literal["off", "frozen", "running"] = "off"
    """Subtract the mean of observations and divide by their standard deviation, for actors and learner alike: "running"
    takes every batch into the statistics, "frozen" the first 100."""
    reward_norm: Literal["off", "frozen", "running"] = "off"
    """Divide rewards by the standard deviation of the discounted return so far, as VecNormalize of Stable-Baselines3
    does, and clip them to 10, before an algorithm applies its reward_scale. For "running" and "frozen" see
    `obs_norm`."""
    norm_frozen_after: Annotated[int | None, Whole(1)] = None
    """Observations, or returns, after which "frozen" statistics stay as they are; the frames of a stack count one by
    one. None: 100 batches."""
    prefetch: Annotated[int, Whole(0)] = 0
    """Batches that a thread draws in advance and copies to the learner's device; 0: each batch is drawn when it is
    needed. Only in async mode."""
    publish_interval: Count = 10
    """Updates between publications of the weights."""
    publish_mode: Literal["snapshot", "double_buffer", "triple_buffer"] = "double_buffer"
    """Slots of shared memory for weights: 1, 2 or 3. More slots take memory; fewer make actors repeat copies."""
    log_interval: Count = 200
    """Updates between reports of loss, epsilon, policy lag and rate. The first update reports its loss at once."""
    checkpoint_interval: Count = 10_000
    """Updates between checkpoints; the learner writes another one at the end."""
    checkpoint_seconds: Timeout = 60.0
    """Seconds after which a learner writes a checkpoint even if it made fewer updates."""
    device: str = "auto"
    """Device on which learners train: "cpu", "cuda:0", "mps", or "auto" for CUDA, then MPS, then the CPU."""
    device_per_agent: bool = False
    """With "auto" and several GPUs: assign the policies to them in turn."""
    timeout: Annotated[float | None, Number(1)] = None
    """Seconds without a heartbeat after which the learner's process is killed and restarted, in async mode; for a
    process with several policies, the longest timeout counts. None: `supervision.learner_timeout`."""
    threads: Annotated[int, Whole(1, most=1024)] = 1  # a million would exhaust the machine
    """CPU threads of each process of the run: learners, actors and the evaluator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine == "compiled" and self.compile != "off":
            raise ValueError(f"compile: expected off when engine is compiled, got {self.compile!r}")


@dataclass(frozen=True)
class ReplayConfig(Declared):
    """Each policy's replay buffer."""

    capacity: Count = 100_000
    """Rows of a policy's replay, over all its agents and environment copies."""
    stack: Annotated[int | None, Whole(1)] = None
    """Observations in a network's input; None: 4 for atari:<game>, otherwise 1."""
    pad: Pad = "repeat"
    """Padding of a stack before an episode's first frame: repeat that frame, or zeros."""
    save: bool = False
    """Save each replay with its learner's checkpoints, so that a resumed run starts with these rows."""
    clear_at_stage: Annotated[bool | tuple[str, ...], flag_or_names] = False
    """Train only on transitions of the current stage: once a learner publishes a new stage, it draws no transitions
    that were written before. Names of `stage_names`: only these stages have this effect."""
    mixture: Annotated[dict[str, float], shares] = field(default_factory=dict)
    """Parts of each policy's replay by tag, with their shares of a batch, such as anchor 0.3 pool 0.7. A row is stored
    in the part of its episode's tag: the opponent's name in self-play, otherwise info["tag"]. Empty: one part."""
    path: Annotated[str | None, existing_directory] = None
    """An existing directory for the replays' files, for replays larger than memory; the files are removed at the end
    unless `durable` is set. By default they are in /dev/shm."""
    durable: bool = False
    """Keep the replays' files, in `path`, after the run's end and through power cuts, so that a resumed run starts with
    these rows and their priorities. For on-policy algorithms these files are queues: a resumed learner continues from
    its checkpoint, and saves the next one before the rows since then fill half of a lane. See docs/reliability.md."""
    prioritized: bool = False
    """Draw transitions in proportion to their priorities (Schaul et al. 2016, arXiv:1511.05952)."""
    alpha: Annotated[float, Number(0)] = 0.6
    """Exponent of priorities; 0 draws uniformly."""
    beta: Annotated[float, Number(0, 1)] = 0.4
    """Exponent of importance weights, from 0 to 1, at the first batch."""
    beta_steps: Annotated[int | None, Whole(1)] = None
    """Batches over which beta rises linearly to 1; None keeps it constant."""
    hindsight: Literal["off", "future", "final", "episode"] = "off"
    """Replace the goal of most drawn transitions by one that their episode achieved: later (future), at its end (final)
    or at any time (episode); Andrychowicz et al. 2017, arXiv:1707.01495. For environments with goals and a
    `compute_reward`, and n_step 1."""
    hindsight_k: Annotated[int, Whole(1, 2**31 - 1)] = 4
    """With hindsight: transitions with a replaced goal for each transition that keeps its own goal."""

    @property
    def frames(self) -> int:
        """The number of observations in a network's input: `stack`, or 1 if that is None."""
        return self.stack or 1

    @property
    def parts(self) -> int:
        return max(1, len(self.mixture))


@dataclass(frozen=True)
class ExplorationConfig(Declared):
    """How actors explore; learners evaluate the schedules and publish the numbers with their weights."""

    epsilon: Annotated[Scheduled | None, probability] = None
    """Probability of a random action, a schedule: 0.1, "linear(1, 0.05, 50000)" over the run's steps, "exponential(1,
    0.02, rate=0.95, every=100, of=updates)", "piecewise([(0, 1), (1000, 0.1)])" or "custom(module:function)". None:
    the exponential above, unless the algorithm has another default."""
    ladder: Annotated[float, Number(0)] = 0.0
    """Ape-X's ladder, its alpha: of N copies, over all actors, copy i explores with epsilon^(1 + ladder * i / (N - 1));
    0 makes all explore alike, 7 is the paper's (Horgan et al. 2018, arXiv:1803.00933, section 4.1)."""
    script: Annotated[str | None, Reference("module:name of an importable object")] = None
    """module:name of a script that acts for each learning policy until the policy's first update, so that the warm-up
    stores the script's actions: a function that returns an action for an observation, or a class whose objects, one for
    each environment copy, have a method act(obs)."""
    schedules: Annotated[Mapping[str, Scheduled], named_schedules] = field(default_factory=dict)
    """Further numbers for an algorithm's `explore`, by name."""

    def exponents(self, copies: int) -> list[float]:
        """Returns the power to which each environment copy raises epsilon; see `ladder`."""
        return [1.0 + self.ladder * i / max(copies - 1, 1) for i in range(copies)]


@dataclass(frozen=True, kw_only=True)
class StopConfig(Declared):
    """Conditions that end a run, with checkpoints, before it has taken total_steps; one of them suffices."""

    episodes: Annotated[int | None, Whole(1)] = None
    """Number of ended episodes at which the run ends, counted for the agent that has ended the most."""
    seconds: Annotated[float | None, Number(above=0)] = None
    """Seconds after which the run ends, earlier parts of a resumed run included."""
    metric: str = "episode_return"
    """The metric of `threshold` and `patience`: a name, such as episode_return or eval_return, or agent/name. Its value
    is the mean of the last `window` values of each agent or policy that reports it, averaged over all of them. It is
    judged once all have reported it, but for those that are silent while another reports ten values more."""
    threshold: Annotated[float | None, Number()] = None
    """Value of the metric at which the run ends."""
    patience: Annotated[int | None, Whole(1)] = None
    """Steps of the run without a better value of the metric, after which the run ends."""
    min_delta: Annotated[float, Number(0)] = 0.0
    """The least improvement that counts for `patience`."""
    window: Annotated[int | None, Whole(1)] = None
    """Number of last values of each agent or policy in the metric's mean; with fewer values, the metric is not judged.
    None: 100 for metrics of episodes, otherwise 1."""
    minimize: bool = False
    """Whether smaller values of the metric are better."""

    @property
    def values(self) -> int:
        """The number of values in the mean: `window`, or the metric's default."""
        return self.window or (100 if self.of_episodes else 1)

    @property
    def of_episodes(self) -> bool:
        """Whether the metric, with or without an agent before it, comes from actors' episodes."""
        return not self.of_evaluation and re.search("(^|/)(episode_[^/]*$|info/)", self.metric) is not None

    @property
    def of_evaluation(self) -> bool:
        """Whether the metric comes from evaluations; each evaluation is judged as a whole."""
        # An agent may be named eval_a; an opponent follows only these two metrics.
        pattern = f"(?!info/)([^/]*/)?{EVALUATED}([^/]*$|(return|win_rate)/)"
        return re.match(pattern, self.metric) is not None

    @property
    def judges(self) -> bool:
        """Whether a condition depends on the metric."""
        return self.threshold is not None or self.patience is not None

    def watches(self, agent: str, name: str) -> bool:
        """Whether a condition depends on this metric of this agent or policy."""
        return self.judges and self.metric in (name, f"{agent}/{name}")


@dataclass(frozen=True)
class MetricsConfig(Declared):
    """The destinations of a run's metrics."""

    sinks: Annotated[tuple[str, ...], sink_names] = ("csv", "tensorboard")
    """Sinks of the metrics: csv, which is the run's own record and must be among them, tensorboard, wandb (Weights &
    Biases), or module:Class for a sink of your own, made with the run's directory."""
    wandb_project: str = "marlcore"
    """The project of the run in Weights & Biases."""
    wandb_mode: Literal["online", "offline"] | None = None
    """Whether Weights & Biases sends metrics, or keeps them for `wandb sync`; None takes the environment
    variable WANDB_MODE, else online."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Declared):
    """The process that plays greedy episodes with the published weights during the run."""

    interval: Annotated[int, Whole(0)] = 0
    """Steps of the run between evaluations; a final evaluation follows the last step. 0: no evaluations by steps."""
    seconds: Seconds = 0.0
    """Seconds between the beginnings of evaluations, in addition to those by steps; a final evaluation follows the last
    step. 0: no evaluations by time."""
    episodes: Count = 10
    """Episodes in each evaluation."""
    envs: Count = 4
    """Environment copies that play the episodes."""
    keep: Annotated[int, Whole(0)] = 3
    """Number of last evaluations whose checkpoints are kept for each policy, beside the best checkpoint."""
    wait: bool = False
    """When an evaluation by `interval` is due, pause the training until the evaluation begins, so that none is skipped,
    as in serial mode; an evaluation whose episodes never end then stops the run's progress. By default training never
    waits: an evaluation that cannot begin before the next one is due is skipped and counted (metric eval_skipped)."""

    @property
    def evaluates(self) -> bool:
        return bool(self.interval or self.seconds)


@dataclass(frozen=True)
class SupervisionConfig(Declared):
    """The treatment of workers that die, fail or hang; in async mode."""

    max_restarts: Annotated[int, Whole(0)] = 3
    """Number of times that a worker is restarted within the window; one more failure ends the run."""
    window: Seconds = 600.0
    """Seconds for which a failure counts towards `max_restarts`."""
    backoff: Seconds = 0.5
    """Seconds before a worker's first restart, doubled before each further restart within the window; at most 30."""
    actor_timeout: Timeout = 60.0
    """Seconds without a heartbeat after which an actor or the evaluator is killed and restarted; at least 120 while it
    starts."""
    learner_timeout: Timeout = 120.0
    """Seconds without a heartbeat after which a learner is killed and restarted; learners also compile and write
    checkpoints."""
    serial_fallback: bool = True
    """If the system can start no process, do all work in this one, as in serial mode."""
