"""marlcore beside other libraries, whole runs on equal terms: `python -m bench peers --sources DIR`.

The sides of a row train the same task by the same algorithm, with as many copies, the same layers, and the same updates
for each step, which the program checks. Each side has an environment of its own, which the program installs, and a
process of its own on as many cores; the sides take turns. CPU-seconds are those of all processes that a side starts,
Ray's daemons included, in the measured time. DIR has checkouts of `cleanrl`, `purejaxrl` and `jaxmarl`.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import psutil

from ..figures import FOLDER, load, write
from ..machine import made, say
from ..pages.pages import peers_table
from ..peers.install import CLEANRL, JAX, RLLIB, RLOX, SAMPLE_FACTORY, SB3, WITH_MARLCORE, Environment
from ..peers.setting import Setting, of_ppo
from ..processes import descendants, in_turns, medians, run_fresh
from .side import MARK

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
WARM_S, START_S, END_S = 2.0, 240.0, 30.0  # START_S: until the first mark, at most
TOLERANCE = 0.05  # of the updates that the steps call for
STORED = FOLDER / "peers.json"
STORE = f"keep the figures in {STORED}"
IDLE = True

Spent = dict[psutil.Process, tuple[str, float]]  # a process's title and CPU-seconds
Mark = tuple[list[float], Spent, float]  # [time, steps, updates]; and CPU-seconds of all processes


@dataclass(frozen=True)
class Side:
    """A module of this folder, the environment that runs it, and the form that it is asked for."""

    module: str
    environment: Environment | None = None
    form: str = ""


def ours(**forms: str) -> dict[str, Side]:
    return {name.replace("_", " "): Side("ours", form=form) for name, form in forms.items()}


ASYNC, SERIAL = ours(marlcore="async"), ours(marlcore_serial="serial")
ONE_CORE = ours(marlcore_serial="serial", marlcore_on_torch="serial torch")
SINGLY, SERIAL_SINGLY = (ours(marlcore_on_copies_one_by_one=f"{mode} singly") for mode in ("async", "serial"))
OF_SB3 = {"Stable-Baselines3": Side("sb3", SB3)}
OF_CLEANRL = {"CleanRL": Side("cleanrl", CLEANRL)}
OF_RLOX = {"rlox": Side("rlox", RLOX)}
OF_JAX, OF_JAXMARL = ({name: Side("jaxed", JAX, name)} for name in ("PureJaxRL", "JaxMARL"))
OF_SF = {"Sample Factory": Side("sample_factory", SAMPLE_FACTORY)}
APPO, RLLIB_PPO = ({f"RLlib's {name}": Side("rllib", RLLIB, name)} for name in ("APPO", "PPO"))
QUEUES = {"pickles in `mp.Queue`": Side("designs", form="queue")}
LOCKS = {"shared arrays with `mp.Lock`": Side("designs", form="lock")}
PPO_RIVALS = OF_SB3 | OF_CLEANRL | OF_RLOX | OF_JAX | RLLIB_PPO
ALONE = ours(alone="async acting")
BESIDE = ours(beside_a_sink_that_hangs="async acting sink", beside_an_evaluator="async acting evaluator")
TWICE = ours(two_runs="async acting twice")

ONCE, PASSES = partial(of_ppo, 512, 512, 1), of_ppo(2048, 64, 10)
DQN, ONE = Setting(hidden=(120, 84)), Setting(hidden=(120, 84), copies=1)
SAC = Setting("sac", "Pendulum-v1", copies=1, updates_per_step=1.0, hidden=(64, 64), learning_rate=1e-3)
WIDE_SAC = replace(SAC, batch=256, hidden=(256, 256))
SPREAD = of_ppo(4800, 1200, 4, env="MPE_simple_spread_v3", agents=3)
HUNT = Setting(env="treasure_hunt", agents=3, updates_per_step=0.1)
ACTING = replace(HUNT, updates_per_step=0.0, epsilon=0.0)
ROWS: dict[str, tuple[Setting, int, Mapping[str, Side]]] = {
    "PPO, a step on each 512 rows, 16 copies": (ONCE(), 1, ONE_CORE | SERIAL_SINGLY | PPO_RIVALS),
    "PPO on 2 cores": (ONCE(), 2, ASYNC | OF_SF | APPO | OF_JAX),
    "PPO, a step on each 512 rows, 64 copies": (ONCE(copies=64), 2, ASYNC | SINGLY | OF_SF | OF_RLOX | OF_JAX),
    "PPO, a step on each 512 rows, 2 actors of 16 copies": (ONCE(actors=2), 2, ASYNC | OF_SF | APPO),
    "two nodes of Ray, PPO": (ONCE(actors=2, nodes=2), 2, ASYNC | APPO),
    "PPO, ten passes over 2048 rows by 64, 16 copies": (PASSES, 1, ONE_CORE | PPO_RIVALS),
    "PPO, the passes on 2 cores": (PASSES, 2, ASYNC | OF_JAX),
    "DQN, 0.25 steps on 64 rows, 1 copy": (ONE, 1, ONE_CORE | OF_SB3 | OF_CLEANRL),
    "DQN, 0.25 steps on 64 rows, 16 copies": (DQN, 1, ONE_CORE | OF_SB3),
    "DQN on 2 cores": (DQN, 2, ASYNC),
    "SAC, Pendulum, a step on 64 rows for each, 64 units": (SAC, 1, ONE_CORE | OF_SB3),
    "SAC, Pendulum, a step on 256 rows for each, 256 units": (WIDE_SAC, 1, ONE_CORE | OF_SB3),
    "simple_spread, IPPO, four passes over 4800 rows by 1200": (SPREAD, 1, SERIAL | OF_JAXMARL),
    "simple_spread on 2 cores": (SPREAD, 2, ASYNC | OF_JAXMARL),
    "treasure_hunt, 3 agents learn by DQN, 0.1 steps, 1 copy": (replace(HUNT, copies=1), 2, ASYNC | QUEUES | LOCKS),
    "treasure_hunt, 3 agents learn, 16 copies": (HUNT, 2, ASYNC),
    "treasure_hunt, 3 agents act alone, 16 copies": (ACTING, 2, ALONE | BESIDE | TWICE),
    "treasure_hunt, 2 actors of 16 copies": (replace(ACTING, actors=2), 2, ALONE),
    "treasure_hunt, 64 copies": (replace(ACTING, copies=64), 2, ALONE | TWICE),
    "treasure_hunt, 2 actors of 64 copies": (replace(ACTING, actors=2, copies=64), 2, ALONE),
    "treasure_hunt, 1 agent, 4 copies": (replace(ACTING, agents=1, copies=4), 2, ALONE | ours(learning="async")),
}


def spent() -> tuple[Spent, float]:
    """What each living descendant has spent, and CPU-seconds of all, ended ones included."""
    used, living = resource.getrusage(resource.RUSAGE_CHILDREN), descendants()
    every = used.ru_utime + used.ru_stime + sum(sum(times[:4]) for _, times in living.values())
    return {process: (title, times.user + times.system) for process, (title, times) in living.items()}, every


def adopt() -> None:
    """From now on a descendant whose parent ends, such as a daemon, becomes this process's child."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def measure(
    side: Side, setting: Setting, cores: int, sources: Path, seconds: float, warm_s: float = WARM_S
) -> dict[str, Any]:
    """A side's rates between its two marks, and its processes with the cores that each of them used.

    The process that calls this must have no other children; they would be counted, and ended.
    """
    adopt()
    python = side.environment.python if side.environment else sys.executable
    words = side.module, json.dumps(asdict(setting)), side.form, str(cores), str(warm_s), str(seconds)
    env = {**WITH_MARLCORE, "MARLCORE_BENCH_SOURCES": str(sources), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["RAY_worker_niceness"] = "0"  # as the other sides have, as torch's one thread by OMP_NUM_THREADS
    marks: list[Mark] = []
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "bench.rivals.side", *words]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        watch = Timer(START_S + seconds, end_descendants)
        watch.start()
        while len(marks) < 2 and (line := process.stdout.readline()):  # type: ignore[union-attr]
            if line.startswith(MARK):
                marks.append((json.loads(line.removeprefix(MARK)), *spent()))
        watch.cancel()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        end_descendants()
        if len(marks) < 2:
            log.seek(0)
            raise ChildProcessError(f"{side.module} {side.form}: {log.read()[-2000:]}")
    return between(*marks, setting)


def between(first: Mark, last: Mark, setting: Setting) -> dict[str, Any]:
    """Raises AssertionError: the updates were not those that the steps call for."""
    seconds, steps, updates = (after - before for before, after in zip(first[0], last[0], strict=True))
    due = steps * setting.updates_per_step
    assert not due or abs(updates - due) <= TOLERANCE * due + 2 * setting.tolerance, (updates, due)
    used = [(cpu - first[1].get(process, (title, 0.0))[1], title) for process, (title, cpu) in last[1].items()]
    busy = sorted(((cpu / seconds, title) for cpu, title in used if cpu >= 0.02 * seconds), reverse=True)
    rates = {"steps_per_s": steps / seconds, "steps_per_cpu_s": steps / (last[2] - first[2])}
    return {**rates, "processes": len(last[1]), "busy": [f"{name} {share:.2f}" for share, name in busy]}


def end_descendants() -> None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def measured(*arguments: Any) -> dict[str, Any] | None:
    """Measures in a new process; reports a side that failed and returns None."""
    try:
        found = run_fresh(measure, *arguments)
    except (AssertionError, ChildProcessError) as failure:
        say(f"failed: {failure}")
        return None
    say(f"{arguments[0].module} {arguments[0].form}: {found}")
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument("--row", action="append", metavar="TEXT", help="rows whose names have this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)


def main(options: argparse.Namespace) -> None:
    for name, (setting, cores, sides) in ROWS.items():
        if not any(text in name for text in options.row or [""]):
            continue
        for environment in {how.environment for how in sides.values() if how.environment and how.environment.missing}:
            environment.install()
        arguments = setting, cores, options.sources.resolve(), options.seconds
        before = os.getloadavg()[0]
        found = in_turns({side: partial(measured, how, *arguments) for side, how in sides.items()}, options.rounds)
        whole = {side: [*filter(None, rounds)] for side, rounds in found.items()}
        row = {**made(before), "sides": {side: medians(rounds) for side, rounds in whole.items() if rounds}}
        say(peers_table({name: row}))
        if options.store:
            write(STORED, {**load(STORED.stem), name: row})
