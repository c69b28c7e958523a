"""`marlcore train`: every field of Config and of the algorithm is an option."""

import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from typing import Annotated, Any

from .. import algos
from ..checks import brief, did_you_mean, printable, short
from ..config import Config, Settings, hints_by_policy, preset_names, read_preset, read_settings
from ..declared import changed, hints_of, listed
from ..meta import train_seeds
from ..record import LATE, described_run, summary
from ..run import train as run
from .first_page import first_page
from .options import CommandLine, option_of, print_table

FIRST_OPTIONS = (  # the options that most runs need
    *("env", "algo", "preset", "total_steps", "updates_per_step", "seed", "seeds", "run_dir"),
    *("actor.processes", "actor.envs", "learner.device", "learner.gamma", "learner.batch_size", "replay.capacity"),
)


@dataclass(frozen=True)
class TrainOptions:
    """Train every agent of an environment at once, each with its own replay, weights and learner.

    `marlcore train --resume RUN [--trust]` continues an earlier run instead, from its last checkpoints; other options
    change its settings. This executes code that the run's config.json names.
    """

    env: str = "treasure_hunt"
    """treasure_hunt, recall, gymnasium:<id>, atari:<game>, pettingzoo:<module>, pettingzoo-parallel:<module>,
    openspiel:<game>, vmas:<scenario> or <module>:<function>."""
    algo: str = "iqn"
    """The learning algorithm: coma, cql, dqn, happo, iqn, maddpg, mappo, matd3, ppo, qmix, r2d2, recurrentppo, sac,
    td3, td3bc, vdn or <module>:<class>; options that begin with --algorithm are its own. Not bc, which learns from
    recorded data alone."""
    seeds: tuple[int, ...] = ()
    """Instead of --seed: makes a run for each of these seeds, and plots the curves of all runs together."""
    parallel: int = 1
    """With --seeds: number of runs that train at a time."""
    init_from: str | None = None
    """A run's directory or a checkpoint, with whose weights the policies start."""
    init_strict: bool = True
    """Refuse weights that do not fit the network; --no-init-strict leaves them out."""
    preset: str | None = None
    """Settings by name, such as cartpole-ppo, with their environment and algorithm; options override them. --preset
    list prints all names."""
    settings: str | None = None
    """A YAML file of settings, with these options' names as its keys; options override it."""


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its last checkpoints, with its settings.

    An option of a setting or of the run's algorithm, such as --total-steps, --actor.processes or
    --algorithm.learning-rate, changes this setting; settings on which the checkpoints depend cannot be changed.

    The command executes code that the run's config.json names; see docs/security.md.
    """

    resume: str
    """The run's directory."""
    trust: bool = False
    """Execute the code of a run's directory that another user could have changed."""


def main(arguments: list[str]) -> int:
    sys.path.append(os.getcwd())  # for modules of --env and --algo; workers use the same path
    line = CommandLine("train", arguments)
    if line.word("preset") == "list":
        presets = {name: read_preset(name) for name in preset_names()}
        rows = [(name, str(one.env), str(one.algo), f"{one.config.total_steps:,}") for name, one in presets.items()]
        print_table({"preset": "left", "environment": "left", "algorithm": "left", "steps": "right"}, rows)
        return 0
    resume, start = None, dict[str, Any]()
    if "resume" in line.words:
        resume, env, algorithm, config = _resumed(line)
    else:
        chosen, env, algorithm, config = _read(line)
        if chosen.init_from is not None:
            start = {"init_from": chosen.init_from, "init_strict": chosen.init_strict}
        if "seeds" in line.words:
            results = train_seeds(env, algorithm, config, chosen.seeds, parallel=chosen.parallel, **start)
            for seed, result in zip(chosen.seeds, results, strict=True):
                returns = ", ".join(f"{agent} {value:,.2f}" for agent, value in result.returns.items())
                sys.stdout.write(printable(f"seed {seed}: mean return over {LATE}: {returns}") + "\n")
            sys.stdout.write(_end(results[0].run_dir.parent, results[0].run_dir))
            return 0
        if chosen.parallel != 1:
            raise ValueError(f"parallel: expected 1 without --seeds, got {chosen.parallel}")
    result = run(env, algorithm, config, resume=resume, **start)
    updates = ", ".join(f"{agent} {count:,}" for agent, count in result.updates.items())
    sys.stdout.write(summary(result.returns))
    if result.stopped:
        sys.stdout.write(printable(f"\nstopped before all steps: {result.stopped}", but="\n"))
    sys.stdout.write(f"\n{printable(f'updates: {updates}')}\n{_end(result.run_dir, result.run_dir)}")
    return 0


def _end(folder: Any, run_dir: Any) -> str:
    play = f"`marlcore eval {shlex.quote(str(run_dir))}` plays the saved policies"
    lines = f"results in {folder}", f"returns were taken while learning, with exploration: see curves.png; {play}", ""
    return "\n".join(map(printable, lines))


def _resumed(line: CommandLine) -> tuple[str, str, Any, Config]:
    """Returns the run's directory, its environment, and its algorithm and settings, changed by the options."""
    if line.asks_for_help:
        line.show_help(ResumeOptions, single_flags=True)
    if of_new_runs := line.words.keys() & {*hints_of(TrainOptions), "run_dir"}:
        raise ValueError(f"--resume takes no {option_of(min(of_new_runs))}; see marlcore train --help")
    hints = hints_of(ResumeOptions) | hints_of(Config) | hints_by_policy(line.words)
    # The types of the algorithm's options are known only once the run was read, which executes code. So unknown options
    # are refused before.
    of_algorithm = {name: tuple[str, ...] for name in line.words if name.startswith("algorithm.")}
    values = line.read(hints | of_algorithm, refuse="--resume takes no {}".format)
    options = ResumeOptions(**_popped(values, hints_of(ResumeOptions)))
    env, algorithm, config = described_run(options.resume, trust=options.trust, replay_path=values.get("replay.path"))
    if of_algorithm:
        if not is_dataclass(algorithm):
            raise ValueError(f"algorithm: expected a dataclass, whose fields are options, got {brief(algorithm)}")
        of_algorithm = hints_of(type(algorithm), "algorithm.")
        values = line.read(hints | of_algorithm, refuse=f"{{}} is no option of {type(algorithm).__name__}".format)
        algorithm = changed(algorithm, _popped(values, of_algorithm, "algorithm."))
        _popped(values, hints_of(ResumeOptions))
    moved = {"run_dir": None}  # the directory may have been moved since config.json was written
    return options.resume, env, algorithm, config.changed(values | moved)


def _popped(values: dict[str, Any], names: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """Removes items from `values`, and returns them by name without the prefix."""
    return {name.removeprefix(prefix): values.pop(name) for name in names if name in values}


def _read(line: CommandLine) -> tuple[TrainOptions, str, Any, Config]:
    settings = _chosen_settings(line)
    if line.asks_for_help and line.word("help") is None:
        sys.stdout.write(_first_page(settings))
        sys.exit(0)
    name = line.word("algo") or settings.algo or TrainOptions.algo
    kind: Any = algos.find(name)
    of_algorithm = hints_of(kind, "algorithm.") if is_dataclass(kind) else {}
    hints = hints_of(TrainOptions) | hints_of(Config) | hints_by_policy(line.words) | of_algorithm
    hyperparameters = settings.algorithm if settings.algo in (None, name) else {}
    for key in (f"algorithm.{label}" for label in hyperparameters):
        if key not in of_algorithm:
            raise ValueError(f"unknown setting {short(key)}{did_you_mean(key, hints)}")
    chosen = {label: tuple(value) if isinstance(value, list) else value for label, value in hyperparameters.items()}
    if line.asks_for_help:
        topic = line.word("help")
        if topic == "all":
            _show_help(line, name, kind(**chosen), settings)
        else:
            _show_topic(line, str(topic), kind(**chosen), settings.config)

    def refuse(option: str) -> str:
        if not option.startswith("--algorithm."):
            return f"unknown option {option}"
        kinds, label = algos.ALGORITHMS.items(), option[2:].replace("-", "_")
        owners = [other for other, one in kinds if label in hints_of(one, "algorithm.")]
        return f"{option} is no option of {name}{f', but of {listed(owners)}' if owners else ''}"

    values = line.read(hints, refuse=refuse)
    options = TrainOptions(**_popped(values, hints_of(TrainOptions)))
    chosen |= _popped(values, of_algorithm, "algorithm.")
    sections = _popped(chosen, [label for label in chosen if "." in label])
    env = options.env if "env" in line.words else settings.env or options.env
    algorithm = kind(**chosen)
    return options, env, changed(algorithm, sections) if sections else algorithm, settings.config.changed(values)


def _chosen_settings(line: CommandLine) -> Settings:
    """Returns the settings of the preset or file that is given, or defaults. Raises ValueError if both are given."""
    file, preset = line.word("settings"), line.word("preset")
    if file and preset:
        raise ValueError(f"settings: expected none beside --preset {preset}, got {file!r}")
    if preset:
        return read_preset(preset)
    return read_settings(file) if file else Settings(Config())


def _first_page(settings: Settings) -> str:
    options = TrainOptions(env=settings.env or TrainOptions.env, algo=settings.algo or TrainOptions.algo)
    owners: dict[str, Any] = {}
    for name in FIRST_OPTIONS:
        section, dot, last = name.rpartition(".")
        of_run = settings.config if last in Config.__dataclass_fields__ else options
        owners[name] = getattr(settings.config, section) if dot else of_run
    about = (TrainOptions.__doc__ or "").partition("\n")[0]
    more = f"All options: --help all. A part of them: --help with {listed(_topics())}. To continue a run: --resume RUN."
    return first_page("marlcore train [OPTIONS]", about, owners, more)


def _topics() -> list[str]:
    return [*dict.fromkeys(name.partition(".")[0] for name in hints_of(Config) if "." in name), "algorithm"]


def _show_topic(line: CommandLine, topic: str, algorithm: Any, config: Config) -> None:
    if topic not in _topics():
        raise ValueError(f"help: expected {listed(('all', *_topics()))}, got {brief(topic)}")
    section = algorithm if topic == "algorithm" else getattr(config, topic)
    about = f"Options of marlcore train that begin with {option_of(topic)}."
    of_topic = (topic, type(section), field(default_factory=lambda: section))
    line.show_help(make_dataclass("Topic", [of_topic], namespace={"__doc__": about}))


def _show_help(line: CommandLine, name: str, algorithm: Any, settings: Settings) -> None:
    import tyro

    nested = Annotated[Config, tyro.conf.arg(name="")]
    kind: Any = make_dataclass(
        "TrainOptions",
        [("config", nested, settings.config), ("algorithm", type(algorithm), field(default_factory=lambda: algorithm))],
        bases=(TrainOptions,),
        frozen=True,
        namespace={"__doc__": TrainOptions.__doc__},
    )
    line.show_help(kind, kind(env=settings.env or TrainOptions.env, algo=name))
