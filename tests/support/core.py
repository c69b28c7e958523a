"""The programs of csrc/test, which tests compile and run."""

import atexit
import functools
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

SUPPORT = Path(__file__).parent
CORE = SUPPORT.parents[1] / "csrc"
CRASH_FLAGS = ["-std=c11", "-O1", "-D_GNU_SOURCE=", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CORE / "test" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


mutants = _load("mutants")
spin_models = _load("spin_models")


def run(command: Sequence[str | Path], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def _preprocessed(core: Path, name: str, text: str, flags: Sequence[str]) -> str:
    """The same for mutants that do not change it: with no path of theirs in it."""
    where = (core / name).parent
    done = subprocess.run(
        [*flags, f"-I{os.path.relpath(core, where)}", "-E", "-x", "c", "-"], cwd=where, capture_output=True, text=True,
        input=f'#line 1 "{name}"\n{text}',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _object_of(preprocessed: str, command: tuple[str, ...]) -> str:
    """Compiled once for all programs that this process builds of it."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    source, compiled = Path(folder.name, "source.i"), f"{folder.name}/source.o"
    source.write_text(preprocessed)
    mutants.compile_with([*command, "-c", str(source), "-o", compiled])
    return compiled


def sources(core: Path, program: str = "") -> dict[str, str]:
    """The texts of the core by their names or, with a program, its text and those of the core that it needs."""
    paths = mutants.sources_of(core, core / program) if program else sorted(core.glob("*.c"))
    return {str(path.relative_to(core)): path.read_text() for path in paths}


def objects(command: Sequence[str], core: Path, texts: Mapping[str, str], first: Sequence[str] = ()) -> list[str]:
    """Those texts compiled; `first` is for the preprocessor alone."""
    expanded = [_preprocessed(core, name, text, [*command, *first]) for name, text in texts.items()]
    return [_object_of(text, tuple(command)) for text in expanded]


def command_of(flags: Sequence[str], gcc: str) -> list[str]:
    return [gcc, *mutants.CFLAGS, "-g1", *flags, "-pthread"]


def build(core: Path, name: str, folder: Path, flags: Sequence[str] = (), gcc: str = "gcc") -> Path:
    """The program <core>/test/<name>.c with what it needs of the core."""
    command = command_of(flags, gcc)
    built = objects(command, core, sources(core, f"test/{name}.c"))
    mutants.compile_with([*command, *built, "-lm", "-o", str(folder / name)])
    return folder / name


def python(program: str | Path, *arguments: object, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-W", "error", program, *map(str, arguments)], timeout)


def report(counts: Mapping[str, float]) -> None:
    """Prints what a program counted, as `counted` reads it."""
    print(*(f"{name} {value}" for name, value in counts.items()), flush=True)


def report_cycles(counts: Mapping[str, int], faults: Iterable[str], cycles: str) -> int:
    """Reports what the cycles counted; returns the program's status, which is 1 if they counted a fault."""
    report({**dict.fromkeys(faults, 0), **counts, "cycles": int(cycles)})
    return int(any(counts[fault] for fault in faults))


def counted(done: subprocess.CompletedProcess[str], fault: str = "") -> Counter[str]:
    """What a program counted, by name; one that broke off is a failure. Its status is 1 if it counted a `fault`."""
    assert done.returncode in (0, 1), done.stdout + done.stderr
    words = done.stdout.split()
    counts = Counter({name: int(float(value)) for name, value in zip(words[::2], words[1::2], strict=True)})
    assert not fault or done.returncode == (counts[fault] > 0)
    return counts


def print_counts(columns: Sequence[str], rows: Mapping[str, Mapping[str, int]]) -> None:
    """A table of what the long forms counted, a line for each of them."""
    print(f"{'':<42}" + "".join(f"{column:>15}" for column in columns))
    for name, counts in rows.items():
        print(f"{name:<42}" + "".join(f"{counts[column]:>15,}" for column in columns))


def call_names(compiler: str = "gcc") -> dict[int, str]:
    """System calls by number, as the C library's headers have them for what the compiler makes programs for.

    Those that only newer machines lack have the name that the others have.
    """
    done = run([compiler, "-dM", "-E", "-include", "sys/syscall.h", "-x", "c", os.devnull])
    assert done.returncode == 0, done.stderr
    defined = {words[1]: words[2] for words in map(str.split, done.stdout.splitlines()) if len(words) == 3}
    names = {}
    for macro in (macro for macro in defined if macro.startswith("__NR_")):
        number = defined.get(defined[macro], defined[macro])  # some are aliases
        name = macro.removeprefix("__NR_")
        if number.isdecimal():
            names[int(number)] = {"unlinkat": "unlink", "renameat": "rename"}.get(name, name)
    return names


def build_crash_points(core: Path, folder: Path, points: str = "crash_points", flags: Sequence[str] = ()) -> Path:
    """marlcore._core of the sources in `core`, with a point at each store; see crash_points.h and `points`.c."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef("\n".join(line for line in (core / "api.h").read_text().splitlines() if not line.startswith("#")))
    ffi.set_source("marlcore._core", '#include "api.h"', py_limited_api=True)
    generated, built, other = folder / "_core.c", folder / "_core.abi3.so", f"test/{points}.c"
    ffi.emit_c_code(str(generated))
    texts = sources(core) | {generated.name: generated.read_text(), other: (core / other).read_text()}
    first = ["-include", "test/crash_points.h", "-isystem", sysconfig.get_path("include")]
    command = ["gcc", *CRASH_FLAGS, *flags]
    mutants.compile_with([*command, *objects(command, core, texts, first), "-o", str(built)])
    return built
