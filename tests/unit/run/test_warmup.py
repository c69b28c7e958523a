"""Compiling kernels is announced, done beforehand by `marlcore warmup`, and works where nothing can be kept."""

import os
import signal
import subprocess
import sys

import pytest
from tiers import long_but

from marlcore.kernels import jit


def ran(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_a_wait_for_the_compiler_is_one_line(tmp_path):
    """Off a terminal too, such as under nohup, where a run shows progress; `train` shows it by default."""
    code = f"""if True:
        import shutil, sys
        from pathlib import Path
        import marlcore as mc
        from marlcore.kernels import jit
        cache = jit.cache_directory()
        for file in Path({str(jit.cache_directory())!r}).glob("*.nb*"):
            shutil.copy(file, cache)
        for train in (mc.train, mc.start):
            for options in ({{}}, {{"progress": True}}, {{"progress": False}}):
                (cache / "warm-uniform").unlink(missing_ok=True)
                try:
                    train("treasure_hunt", config=mc.Config(mode="serial"), resume="/nowhere", **options)
                except ValueError:
                    assert (cache / "warm-uniform").exists()
                print(train.__name__, options, file=sys.stderr)
    """
    said = f"marlcore: {jit.FIRST_COMPILATION}\n"
    shown, hidden = "{'progress': True}\n", "{'progress': False}\n"
    by_train = f"{said}train {{}}\n{said}train {shown}train {hidden}"
    by_start = f"start {{}}\n{said}start {shown}start {hidden}"
    assert ran(code, NUMBA_CACHE_DIR=str(tmp_path)).stderr == by_train + by_start


def test_overlapping_threads_leave_notices_as_they_were():
    code = """if True:
        from marlcore import notices
        first, second = notices.shown_with(True), notices.shown_with(False)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        notices.say("hidden")
        second.__exit__(None, None, None)
        with notices.shown_with(True):
            notices.say("shown")
        notices.say("to the log, since this is no terminal")
    """
    assert ran(code).stderr == "marlcore: shown\n"


COMPILES = """if True:
    import numba
    from marlcore import notices
    from marlcore.kernels import compiler, jit
    def one(x): return x + 1
    def two(x): return x + 2
    one.__module__ = two.__module__ = "marlcore.kernels.made"
    {first}
    assert numba.njit(one)(1) + numba.njit(two)(1) == 5
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("notices.say_always()", f"marlcore: {jit.FIRST_COMPILATION}\n"),
        ("", ""),  # a library keeps to the log
        ("notices.say_always(); jit.announced()", ""),  # warmup says it itself
        ("notices.say_always(); import marlcore.preload_torch", ""),  # in a fork server, whose parent says it
    ],
)
def test_the_command_line_says_the_first_compilation_once(first, said):
    assert ran(COMPILES.format(first=first)).stderr == said


@pytest.mark.long
def test_an_unwritable_cache_names_the_variable(tmp_path):
    code = """if True:
        import tempfile
        def refuse(*args, **kwargs): raise PermissionError(13, "read-only")
        tempfile.TemporaryFile = refuse
        from marlcore.kernels import jit, uniform
        assert jit.cache_directory() is None
        assert jit.jit(lambda x: x + 1)(1) == 2
    """
    lines = ran(code, XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path), TMPDIR=str(tmp_path)).stderr.splitlines()
    assert sum("set NUMBA_CACHE_DIR to a directory that only this user can write" in line for line in lines) == 1
    assert not any("Traceback" in line for line in lines)


@pytest.mark.long
def test_the_benchmark_says_what_each_call_and_its_bound_take():
    out = subprocess.check_output([sys.executable, "-m", "marlcore", "bench"], text=True)
    assert "load" in out and "copies of its rows" in out and "ratio: us / bound us" in out
    for call in ("add", "add_batch of 256", "sample 256", "priority", "publish", "pull"):
        assert call in out


FIRST_BATCHES = """if True:
    import numpy as np
    import marlcore as mc
    from marlcore import preload, preload_torch
    obs = {"achieved_goal": mc.Field((2,)), "desired_goal": mc.Field((2,)), "pixels": mc.Field((4,))}
    spec = mc.TransitionSpec(obs, mc.Field((), "int64"))
    row = {name: np.zeros(field.shape) for name, field in obs.items()}, 0, 0.0
    with mc.ReplayBuffer.create(spec, 64) as replay, mc.TrajectoryQueue.create(spec, 64) as queue:
        with replay.writer() as writer, queue.writer() as queued, queue.reader(batch_size=8) as reader:
            for _ in range(20):
                writer.add(*row)
                queued.add(*row)
            reader.read()
        for options in (
            {"n_step": 3},
            {"prioritized": mc.Prioritized(), "stack": 2},
            {"sequence": mc.Sequence(4, period=2)},
            {"replace": False},
            {"hindsight": mc.Hindsight(compute_reward=lambda achieved, desired, info: np.zeros(len(achieved)))},
        ):
            sampler = replay.sampler(8, **options)
            index = sampler.sample().index
            if sampler.prioritized:
                sampler.update_priorities(index, np.ones(8))
            sampler.load_state_dict(sampler.state_dict())
        assert len(replay.read([0])) == 1 and len([*replay.batches(8), *replay.episodes()])
"""


PLANS = """if True:
    from marlcore.planning.warmup import ONE_STEP
    for probabilities in ("float64", "float32"):
        for goals in ({0: [bool]}, lambda state, agent: [(bool, 1.0)]):
            for dtype in ("float64", "float32", "float16"):
                graph = planning.build_graph(ONE_STEP, workers=1, probabilities=probabilities)
                people = planning.backward_induction(graph, goals, [0], dtype=dtype, gamma=0.5)
                planning.robot_induction(graph, people, lambda attainable, weights: attainable[0][:, 0])
"""


@pytest.mark.long
def test_after_a_warm_up_nothing_compiles():
    """It compiles every kernel that Python calls: for what the fork server loads, a learner's first batches, and plans,
    whatever the probabilities' dtype, of goals in a list or a function. Another process compiles nothing at all.
    """
    code = """if True:
        import gc
        from importlib import import_module
        from pkgutil import iter_modules
        from numba.core.dispatcher import Dispatcher
        from marlcore import kernels, planning
        from marlcore.run import warmup
        def compiled():
            return {kernel: len(kernel.signatures) for kernel in gc.get_objects() if isinstance(kernel, Dispatcher)}
        warmup.warm_up()
        planning.warm_up()
        modules = [*iter_modules(kernels.__path__, "marlcore.kernels.")]
        modules += iter_modules(planning.kernels.__path__, "marlcore.planning.kernels.")
        for module in modules:
            for name, found in vars(import_module(module.name)).items():
                if isinstance(found, Dispatcher) and not name.startswith("_") and not found.signatures:
                    print(f"{module.name}.{name}")
        before = compiled()
        for program in PROGRAMS:
            exec(program)
            print(*[kernel for kernel, count in compiled().items() if count != before.get(kernel, 0)])
    """
    assert ran(f"PROGRAMS = {[FIRST_BATCHES, PLANS]!r}\n{code}").stdout == "\n\n"
    assert "compil" not in ran(f"from marlcore.notices import say_always\nsay_always()\n{FIRST_BATCHES}").stderr


@pytest.mark.long
def test_a_run_compiles_its_own_kernels_each_once(tmp_path):
    """In processes beside this one, if there are several kinds of batches."""
    code = """if True:
        from marlcore import Hindsight
        from marlcore.interfaces import QueueSource, ReplaySource
        from marlcore.kernels import hindsight, inorder, jit, uniform
        from marlcore.run import warmup
        def compiled():
            return sorted(file.name.split("-")[0].removeprefix("marlcore.kernels.") for file in cache.glob("*.nbc"))
        cache, warmup.processors = jit.cache_directory(), lambda: 2
        warmup.compile_before_a_run(ReplaySource(), ReplaySource(n_step=3))
        print(*compiled())
        relabelled = ReplaySource(hindsight=Hindsight(compute_reward=max))
        warmup.compile_before_a_run(ReplaySource(), QueueSource(8), relabelled)
        print(*[compiled().count(name) for name in ("uniform.draw", "inorder.read", "hindsight.relabel")])
        print(*[sum(kernel.stats.cache_misses.values()) for kernel in (uniform.draw, inorder.read, hindsight.relabel)])
    """
    alone, each, here = ran(code, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_OPT="1").stdout.splitlines()
    assert alone == "uniform.draw uniform.draw_listed uniform.list_sampleable"
    assert (each, here) == ("1 1 1", "1 0 0")


STOPS = """
    import os, signal, sys
    import pytest
    from marlcore.__main__ import main

    def stop(*args, **options):
        os.write(1, b"compiles\\n")  # in one piece, since several processes do
        signal.pause()

    pytest.MonkeyPatch().setattr(sys.argv[1], stop)
    main(["warmup"])
"""


SIGNALS = [
    ("marlcore.run.warmup._load", signal.SIGINT),
    ("marlcore.run.warmup._load", signal.SIGKILL),
    ("marlcore.planning.induction.induce", signal.SIGINT),
]


@pytest.mark.parametrize(("kernel", "signum"), long_but(SIGNALS[1:2], SIGNALS))
def test_a_signal_while_kernels_are_compiled_leaves_no_segment(program, kernel, signum):
    """The fixture `leaves_nothing_behind` looks for segments."""
    compiles = program(STOPS, args=[kernel])
    while compiles.line() != "compiles":
        assert compiles.running
    os.kill(compiles.pid, signum)
    while line := compiles.line():  # until the last process has ended
        assert line == "compiles"
