"""The section `multiprocessing` of an experiment's configuration: options, and settings that belong elsewhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from ...checks import brief, check_type, names_error
from ...declared import listed
from .options import Options, setting_of
from .role import LEARNER

_LABEL = "config: multiprocessing"
_ALIASES = {"mode": "publish_mode", "train_interval": "publish_interval"}  # other names of options
_TIMEOUTS = {"actor_timeout": "actor", "learner_timeout": "learner"}
_DEALT_OUT = "device_per_agent"


def chosen_options(env: Any, config: Any, options: Mapping[str, Any]) -> tuple[bool, Options]:
    """Returns whether to use processes, and the options: those of the call, then of the section `multiprocessing`."""
    section = getattr(config, "multiprocessing", None)
    if not isinstance(section, Mapping | None):
        raise TypeError(f"{_LABEL}: expected a section, got {brief(section)}")
    chosen = dict(section or {})
    enabled = chosen.pop("enabled", True)
    check_type(f"{_LABEL}.enabled", enabled, bool, expected="true or false")
    agents = getattr(env, "agents", ())
    models = [*{id(model): model for model in (getattr(agent, "model", None) for agent in agents)}.values()]
    elsewhere = _set_elsewhere(agents, models, config)
    names = {field.name for field in fields(Options)}
    known = {"enabled", _DEALT_OUT, *_ALIASES, *_TIMEOUTS, *elsewhere, *names}
    if not chosen.keys() <= known:
        raise names_error(_LABEL, known, chosen)
    for name in filter(chosen.__contains__, elsewhere):
        _check(name, chosen.pop(name), *elsewhere[name])
    for alias, name in _ALIASES.items():
        _rename(chosen, [alias], name, lambda given: next(iter(given.values())))
    _rename(chosen, _TIMEOUTS, "timeout", lambda given: {_TIMEOUTS[name]: value for name, value in given.items()})
    _rename(chosen, [_DEALT_OUT], "device", lambda given: _dealt_out(given[_DEALT_OUT], len(models)))
    return enabled, Options(**{**chosen, **options})


def _set_elsewhere(agents: Sequence[Any], models: Sequence[Any], config: Any) -> dict[str, tuple[str, Iterable[Any]]]:
    """Returns, for each setting that is no option, the place that sets it, and its known values there."""

    def of_each(name: str, part: str | None = None) -> list[Any]:
        owners = [getattr(model, part, None) if part else model for model in models]
        return [getattr(owner, name) for owner in owners if hasattr(owner, name)]

    rates = [group["lr"] for groups in of_each("param_groups", "optimizer") for group in groups]
    decay = setting_of(config, "model", "epsilon_decay")
    return {
        "num_agents": ("the number of agents", [len(agents)]),
        "num_learner_processes": ("one for each model", [len(models)]),
        "buffer_capacity": ("the capacity of each model's memory", of_each("capacity", "memory")),
        "batch_size": ("the batch_size of each model", of_each("batch_size")),
        "learning_rate": ("the rate of each model's optimizer", rates),
        "epsilon_min": ("the epsilon_min of each model", of_each("epsilon_min")),
        "epsilon_decay": ("model.epsilon_decay of the configuration", [] if decay is None else [decay]),
        "epsilon_decay_freq": ("since sorrel's loop decays epsilon once in an epoch", []),
        "target_update_freq": ("since each model's train_step updates its target", []),
        "model_config": ("since the section model of the configuration has it", []),
        "log_interval": ("since the logger gets every epoch", []),
    }


def _check(name: str, value: Any, where: str, values: Iterable[Any]) -> None:
    found = [*dict.fromkeys(values)]
    if value is not None and found != [value]:
        expected = f"null or {listed(found)}" if found else "null"
        raise ValueError(f"{_LABEL}.{name}: expected {expected}, {where}, got {brief(value)}")


def _rename(
    chosen: dict[str, Any], aliases: Iterable[str], name: str, convert: Callable[[dict[str, Any]], Any]
) -> None:
    given = {alias: chosen.pop(alias) for alias in aliases if alias in chosen}
    if given and name in chosen:
        raise ValueError(f"{_LABEL}: expected {next(iter(given))} or {name}, got both")
    if given:
        chosen[name] = convert(given)


def _dealt_out(value: Any, models: int) -> dict[str, str] | None:
    """Returns the GPU of each learner, dealt out in turn; None (the models' own devices) if False, or without GPUs."""
    check_type(f"{_LABEL}.{_DEALT_OUT}", value, bool, expected="true or false")
    count = torch.cuda.device_count() if value else 0
    return {LEARNER.format(i): f"cuda:{i % count}" for i in range(models)} if count else None
