"""Describes a run in JSON: config.json, and policies.json, from which policies can be loaded without executing code."""

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from .. import algos
from ..checks import brief, printable
from ..config import SECTIONS, AssignedPolicy, Config, is_custom
from ..declared import flattened
from ..envs import NamedEnvironment
from ..envs.joint import JointObservations
from ..envs.team import Teams
from ..interfaces import Algorithm
from ..references import reference_to
from ..spaces import Spaces, is_text
from .files import believed, read_json, write_json
from .remote import fetch_run, is_address
from .run_directory import keeps_replays, read_config
from .trust import IMPORTED, open_run

POLICIES = "checkpoints/policies.json"
OF_POLICIES = ("learner", "learners", "exploration", "explorations", "stages")  # the settings by which policies act
ANCHORS, ROLES = "self_play.anchors", "self_play.roles"
# See `fixed_settings`; OF_ROWS and OF_PRIORITIES apply only if replays were saved.
FIXED = {
    "algorithm": "the run's checkpoints are of that algorithm",
    "policies": "each policy of the run has a checkpoint",
    "teams": "the run's networks are made for those members",
    "learner.obs_norm": "the run's networks depend on it",
    "learner.reward_norm": "the run's networks depend on it",
    "replay.stack": "the run's networks depend on it",
    ANCHORS: "the run's table of results follows their order",
    ROLES: "each policy of the run has a checkpoint, and the tables of results follow their order",
}
OF_ROWS = (
    "actor.processes", "actor.envs", "cluster.nodes", "cluster.actors_per_node", "replay.capacity", "replay.mixture",
    "replay.prioritized",
)  # fmt: skip
OF_PRIORITIES = ("learner.n_step", "replay.alpha")
REPLAYS = "the run's saved replays"
MOST_NUMBERS = 2**24  # in the arrays of all described spaces: a file may claim any size
_NUMBERS = {"Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start"), "Box": ("low", "high")}


def describe(env_fn: Any, policies: tuple[AssignedPolicy, ...], config: Config) -> dict[str, Any]:
    """Returns the environment, the algorithm (or a dict of them by policy) and every setting, in a form for JSON."""
    first = policies[0].algorithm
    names: Any = {policy.name: algos.name_of(policy.algorithm) for policy in policies}
    chosen: Any = {policy.name: hyperparameters(policy.algorithm) for policy in policies}
    if all(policy.algorithm is first for policy in policies):
        names, chosen = algos.name_of(first), hyperparameters(first)
    made_by = env_fn
    while isinstance(made_by, (JointObservations, Teams)):
        made_by = made_by.env_fn
    options: dict[str, Any] = {}
    if isinstance(made_by, NamedEnvironment):
        options["env_options"] = {name: _plain(value) for name, value in made_by.options.items()}
        options["env_wrappers"] = [*made_by.wrappers]
    return {
        "env": getattr(made_by, "name", None) or reference_to(made_by) or repr(made_by),
        **{name: value for name, value in options.items() if value},
        "algorithm": names,
        "hyperparameters": chosen,
        **config.to_dict(),
        "policies": config.policies and {agent: policy.name for policy in policies for agent in policy.agents},
    }


def environment_of(described: Mapping[str, Any]) -> str:
    """Returns the environment's name with its options and wrappers, for messages."""
    return " ".join(str(described[name]) for name in ("env", "env_options", "env_wrappers") if described.get(name))


def hyperparameters(algorithm: Algorithm) -> dict[str, Any]:
    """Returns an algorithm's hyperparameters in a form for JSON, from which `remade` recreates the algorithm."""
    if not dataclasses.is_dataclass(algorithm):
        return {name: _plain(value) for name, value in getattr(algorithm, "__dict__", {}).items()}
    return {field.name: _plain(getattr(algorithm, field.name)) for field in dataclasses.fields(algorithm) if field.init}


def _plain(value: Any) -> Any:
    """Returns a form for JSON; a value that JSON cannot hold becomes its repr, for human readers."""
    if isinstance(value, (tuple, list)):
        return [_plain(member) for member in value]
    simple = isinstance(value, (bool, int, str, type(None))) or (isinstance(value, float) and math.isfinite(value))
    return value if simple else {"repr": re.sub(" at 0x[0-9a-f]+", "", repr(value))}  # addresses differ in each process


def described_run(
    run_dir: str | Path, *, trust: bool = False, replay_path: str | None = None
) -> tuple[Any, Algorithm | dict[str, Algorithm], Config]:
    """Imports the objects that config.json names; returns the described environment, algorithms and settings.

    `replay_path` replaces the described directory, which may no longer exist.

    Raises ValueError if the file names something that cannot be imported, or if another user could have changed it.
    """
    if is_address(run_dir):
        if not trust:
            expected = "trust: expected trust=True or --trust for a remote run, since loading it executes code"
            raise ValueError(f"{expected}, got {run_dir!r} without trust")
        with TemporaryDirectory() as folder:
            fetched = fetch_run(run_dir, Path(folder), "config.json")
            return described_run(fetched, trust=True, replay_path=replay_path)
    described = read_config(open_run(run_dir, IMPORTED, trust))
    try:
        if replay_path is not None:
            described = {**described, "replay": {**described["replay"], "path": replay_path}}
        config, env, name = Config.from_dict(described), described["env"], described["algorithm"]
        chosen = described["hyperparameters"]
        _check_named("environment", env)
        options, wrappers = described.get("env_options", {}), described.get("env_wrappers", [])
        if options or wrappers:
            env = NamedEnvironment(env, {key: _value(key, value, "option") for key, value in options.items()}, wrappers)
        if not isinstance(name, dict):
            return env, remade(name, chosen), config
        return env, {policy: remade(name[policy], chosen[policy], f"algorithm of {policy}") for policy in name}, config
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = printable(str(error)) if isinstance(error, ValueError) else brief(error)
        raise ValueError(
            f"resume: expected a run that its config.json describes, got {str(run_dir)!r} ({reason}); "
            "the program that started it can resume it: marlcore.train(env_fn, algorithm, config, resume=...)"
        ) from None


def remade(name: str, hyperparameters: Mapping[str, Any], label: str = "algorithm") -> Algorithm:
    """Makes the named algorithm. Raises ValueError if it cannot be imported, or if JSON could not hold a value."""
    _check_named(label, name)
    return algos.make(name, **{label: _value(label, value) for label, value in hyperparameters.items()})


def _check_named(what: str, name: str) -> None:
    """Raises ValueError if a name cannot be imported, since it is defined in a script, a notebook or a function."""
    if name.startswith("__main__:") or "<" in name:
        raise ValueError(f"{what}: expected a name that can be imported, got {name}")


def _value(label: str, value: Any, kind: str = "hyperparameter") -> Any:
    if isinstance(value, Mapping):
        raise ValueError(f"{kind} {label}: {printable(str(value.get('repr')))} cannot be recreated")
    return tuple(_value(label, member, kind) for member in value) if isinstance(value, list) else value


def check_resumed(run_dir: str | Path, described: dict[str, Any], policies: tuple[AssignedPolicy, ...]) -> None:
    """Raises ValueError if there is no run to resume, or a fixed setting was changed.

    Another environment is accepted if its policies have the same agents and spaces. Changed hyperparameters are checked
    later, when the checkpoints are loaded into the networks.
    """
    now = dict(flattened(_as_json(described), Config))
    # The runs of older versions lack newer settings; the defaults of these are the older behaviour.
    before = dict(flattened(_as_json(Config().to_dict()), Config)) | dict(flattened(read_config(run_dir), Config))
    prioritized = any(chosen for *_, chosen in _each("replay.prioritized", before, now))
    fixed = fixed_settings(keeps_replays(run_dir), prioritized)
    if not all(settings.get("actor.processes") or settings.get("cluster.address") for settings in (before, now)):
        fixed["actor.processes"] = "a run on recorded data has no actors, and its steps are updates"
    for label, reason in fixed.items():
        for name, old, new in _each(label, before, now):
            if old != new:
                remedy = "; to change it, remove checkpoints/*.replay and *.durable" if REPLAYS in reason else ""
                told = f"expected {name} {old!r}, as in the run so far, got {brief(new)}: {reason}{remedy}"
                raise ValueError(f"resume: {told}")
    _check_same_spaces(Path(run_dir) / POLICIES, policies)


def check_steps_left(run_dir: Path, total_steps: int, steps: int) -> None:
    """Raises ValueError if a resumed run, which has taken so many steps, has none left."""
    if total_steps <= steps:
        complete = "the run is complete; to continue it, " if steps >= read_config(run_dir)["total_steps"] else ""
        expected = f"{complete}expected more than the {steps:,} steps that the run has taken"
        raise ValueError(f"total_steps: {expected}, got {total_steps}")


def fixed_settings(replays: bool, prioritized: bool) -> dict[str, str]:
    """Returns the settings that a resumed run must keep, with reasons; saved replays add some, priorities more."""
    fixed = dict(FIXED)
    if replays:
        fixed |= dict.fromkeys(OF_ROWS, f"{REPLAYS} depend on it")
        if prioritized:
            fixed |= dict.fromkeys(OF_PRIORITIES, f"the priorities in {REPLAYS} depend on it")
    return fixed


def _as_json(described: dict[str, Any]) -> Any:
    return json.loads(json.dumps(described, default=os.fspath))


def _each(label: str, before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, old value, new value) of a setting: for the run, then for each policy with its own section."""
    old, new = before.get(label), now[label]
    if label == ANCHORS:  # the anchors' shares may change
        old, new = [*(old or ())], [*new]
    if label == ROLES:  # the order of roles numbers the opponents in tables of results
        old, new = [*(old or {}).items()], [*new.items()]
    yield label, old, new
    section, _, name = label.partition(".")
    for by in [by for by, usual in SECTIONS.items() if name and usual == section]:
        for policy in before.get(by, {}) | now.get(by, {}):
            old, new = (run.get(by, {}).get(policy, {}).get(name, run.get(label)) for run in (before, now))
            yield f"{by}.{policy}.{name}", old, new


def _check_same_spaces(path: Path, policies: tuple[AssignedPolicy, ...]) -> None:
    before = _policies_in(path, "resume") if os.path.lexists(path) else {}
    now = {policy.name: _as_json(_described_policy(policy)) for policy in policies}
    if before and before.keys() != now.keys():
        raise ValueError(f"resume: expected an environment for the policies {[*before]}, got one for {[*now]}")
    for name, label in itertools.product(before, ("agents", "observation", "action", "masked")):
        old, new = before[name].get(label), now[name][label]
        if old != new:
            raise ValueError(
                f"resume: expected an environment in which {label} of {name} is {brief(old)}, as in the run so far, "
                f"got {brief(new)}, which does not fit the checkpoint"
            )


def changed_hyperparameters(run_dir: Path, policy: AssignedPolicy) -> dict[str, tuple[Any, Any]]:
    """Returns, by name, (old, new) of each hyperparameter of a policy that differs from a run's config.json."""
    described = read_config(run_dir)
    before, names = described.get("hyperparameters", {}), described.get("algorithm")
    if isinstance(names, dict):
        before = before.get(policy.name, {})
    now = _as_json(hyperparameters(policy.algorithm))
    return {name: (before.get(name), now[name]) for name in now if now[name] != before.get(name)}


def write_policies(run_dir: Path, policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Writes the file that `described_policies` reads."""
    plain = config.to_dict()
    settings = {label: plain[label] for label in OF_POLICIES}
    settings["replay"] = {"pad": config.replay.pad}  # not its path, which need not exist where policies are loaded
    write_json(run_dir / POLICIES, {"policies": [*map(_described_policy, policies)], "config": settings})


def _described_policy(policy: AssignedPolicy) -> dict[str, Any]:
    return {
        "name": policy.name,
        "agents": policy.agents,
        "observation": _described(policy.spaces.observation),
        "action": _described(policy.spaces.action),
        "masked": policy.spaces.masked,
        "stack": policy.spaces.stack,
        "algorithm": algos.name_of(policy.algorithm),
        "hyperparameters": hyperparameters(policy.algorithm),
    }


def policies_of(run_dir: Path) -> list[str]:
    """Returns the names of a run's policies. Raises ValueError if there is no run."""
    return [*_policies_in(run_dir / POLICIES, "init_from")]


def _policies_in(path: Path, label: str) -> dict[str, dict[str, Any]]:
    with believed(f"{label}: expected the directory of a run", path.parents[1], f"{path.name}: policies"):
        return {policy["name"]: dict(policy) for policy in read_json(path)["policies"]}


def described_policies(run_dir: Path) -> tuple[tuple[AssignedPolicy, ...], Config]:
    """Reads a run's policies, and the settings with which they act, except custom schedules.

    Raises ValueError if the file is damaged, or if it names code that would have to be imported.
    """
    path = run_dir / POLICIES
    try:
        described = read_json(path)
        numbers = sum(
            _numbers_in(policy[space]) for policy in described["policies"] for space in ("observation", "action")
        )
        if numbers > MOST_NUMBERS:
            raise ValueError(f"expected spaces of at most {MOST_NUMBERS:,} numbers, got {brief(numbers)}")
        return tuple(map(_policy, described["policies"])), _config(described["config"])
    except Exception as error:  # a seal proves nothing about the content
        reason = printable(str(error)) if isinstance(error, (ValueError, OSError)) else brief(error)
        expected = "weights_only: expected policies of built-in algorithms"
        raise ValueError(f"{expected}, got {str(path)!r} ({reason})") from None


def _policy(plain: Mapping[str, Any]) -> AssignedPolicy:
    name, values = plain["algorithm"], plain["hyperparameters"]
    if name.lower() not in algos.ALGORITHMS:
        raise ValueError(f"{plain['name']} is of the algorithm {printable(name)}, whose code would have to be imported")
    for label, value in values.items():
        if ":" in json.dumps(value):  # module:name, or a value that JSON could not hold
            raise ValueError(f"{plain['name']} has the hyperparameter {label}={brief(value)}, which is code")
    spaces = Spaces(_space(plain["observation"]), _space(plain["action"]), plain["masked"], plain["stack"])
    return AssignedPolicy(plain["name"], tuple(plain["agents"]), spaces, remade(name, values))


def _config(plain: Mapping[str, Any]) -> Config:
    """Makes a Config of the settings with which policies act, without functions, which would have to be imported."""
    known = {label: plain[label] for label in OF_POLICIES if label in plain}
    known["exploration"] = _without_functions(plain["exploration"])
    explorations = known.get("explorations", {})
    known["explorations"] = {policy: _without_functions(section) for policy, section in explorations.items()}
    return Config.from_dict({**known, "replay": {"pad": plain["replay"]["pad"]}})


def _without_functions(exploration: Mapping[str, Any]) -> dict[str, Any]:
    schedules = {name: text for name, text in exploration.get("schedules", {}).items() if not is_custom(text)}
    epsilon = exploration.get("epsilon")
    return {**exploration, "epsilon": None if is_custom(epsilon) else epsilon, "schedules": schedules}


def _described(space: gym.Space) -> dict[str, Any]:
    if isinstance(space, gym.Dict):
        # A key of another type becomes a dict, which `_space` refuses as a key.
        keys = [key if isinstance(key, (str, int, float)) else {"repr": repr(key)} for key in space.spaces]
        return {"kind": "Dict", "spaces": list(zip(keys, map(_described, space.spaces.values()), strict=True))}
    if isinstance(space, gym.Tuple):
        return {"kind": "Tuple", "spaces": [_described(part) for part in space.spaces]}
    if isinstance(space, gym.MultiBinary):
        return {"kind": "MultiBinary", "n": np.asarray(space.n).tolist()}  # a number or a shape
    if is_text(space):
        return {"kind": "Text"}  # keeps its place in a Tuple, but networks leave it out
    kind = next(name for name in _NUMBERS if isinstance(space, getattr(gym, name)))
    numbers = {name: _shortened(np.asarray(getattr(space, name))) for name in _NUMBERS[kind]}
    return {"kind": kind, **numbers, "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}


def _numbers_in(plain: Mapping[str, Any]) -> float:
    """Returns the number of inputs or outputs that a network needs for a described space."""
    if plain["kind"] in ("Dict", "Tuple"):
        return sum(_numbers_in(part[1] if plain["kind"] == "Dict" else part) for part in plain["spaces"])
    n, nvec, shape = (np.array(plain.get(name, 1), np.float64) for name in ("n", "nvec", "shape"))
    return float(max(n.prod(), nvec.sum() * (shape.prod() if nvec.size == 1 else 1)))


def _space(plain: Mapping[str, Any]) -> gym.Space:
    kind = plain["kind"]
    if kind == "Dict":
        return gym.Dict([(key, _space(part)) for key, part in plain["spaces"]])  # from a dict, keys would be sorted
    if kind == "Tuple":
        return gym.Tuple([_space(part) for part in plain["spaces"]])
    if kind == "MultiBinary":
        return gym.MultiBinary(plain["n"])
    if kind == "Text":
        return gym.Text(1)
    dtype = np.dtype(plain["dtype"])
    first, second = (np.broadcast_to(np.array(plain[name], dtype), plain["shape"]) for name in _NUMBERS[kind])
    if kind == "Discrete":
        other = {} if dtype == np.int64 else {"dtype": dtype}  # older releases of Gymnasium lack this argument
        return gym.Discrete(first.item(), start=second.item(), **other)
    if kind == "MultiDiscrete":
        return gym.MultiDiscrete(first, dtype=dtype, start=second)
    return gym.Box(first, second, dtype=dtype.type)


def _shortened(array: NDArray[Any]) -> Any:
    """Returns an array's numbers, which may be infinite, as strings; a single one if all are equal."""
    if array.size and (array == array.flat[0]).all():
        array = array.reshape(-1)[0]
    return array.astype(str).tolist()
