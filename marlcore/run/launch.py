"""A run before its start: its spec, and the arguments that only the starting process uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import absolute, check_type
from ..config import Config
from ..notices import shown_with
from ..record import RUNS, Callback, InitFrom, check_callback, fetch_run, initial_states, located, unkept_steps
from ..replay import ReplayBuffer
from .spec import OFFLINE, Algorithms, RunSpec, acting_spec, recorded_spec, warn_of_short_run
from .warmup import compile_before_a_run


@dataclass(frozen=True)
class Launch:
    """A checked run's spec, and the arguments that only the starting process uses."""

    spec: RunSpec
    runs: Path  # the parent of the run's directory if `run_dir` is None
    resume: Path | None  # the directory of the run that continues, on this machine
    remote: str | None  # the address to which the run's directory is copied
    initial: Mapping[str, Mapping[str, Any]]  # by policy: the checkpoint's state from which it starts (`init_from`)
    init_strict: bool
    callback: Callback | None
    progress: bool
    plots: bool  # whether to draw curves at the end

    @classmethod
    def checked(
        cls, env_fn: Any, algorithm: Algorithms, config: Config | None = None,
        progress: bool = False, resume: str | Path | None = None, callback: Callback | None = None,
        init_from: InitFrom | None = None, init_strict: bool = True,
        data: tuple[ReplayBuffer | Mapping[str, ReplayBuffer], int] | None = None, plots: bool = True,
    ) -> Launch:  # fmt: skip
        """Makes a launch from the arguments of `train` or, with `data` (replay, updates), of `train_offline`.

        Compiles the kernels if this machine has never compiled them. Raises ValueError or TypeError for bad input.
        """
        check_type("config", config, Config, or_none=True)
        check_callback(callback)
        config = config or (Config() if data is None else OFFLINE)
        config, here, remote = located(config, resume)  # first, since an environment may change the working directory
        runs = absolute(RUNS) if here is None and config.run_dir is None else Path(RUNS)
        with shown_with(progress):
            if data is not None:
                spec = recorded_spec(*data, env_fn, algorithm, config)
            else:
                spec = acting_spec(env_fn, algorithm, config)
            initial = initial_states(init_from, spec.names)
            warn_of_short_run(spec, 0 if here is None else unkept_steps(here))
            compile_before_a_run(*(policy.source for policy in spec.policies))
        if remote and resume is not None:  # last, since it may take long
            here = fetch_run(remote, absolute(RUNS))
        return cls(spec, runs, here, remote, initial, init_strict, callback, progress, plots)
