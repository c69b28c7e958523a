"""The command line: `marlcore train` and the other COMMANDS."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import shlex
import signal
import sys
from importlib import import_module


def _prepare_streams() -> None:
    """Opens the null device for closed standard streams, so that files opened later do not get numbers 0 to 2."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A run directory's name may hold any bytes, and a terminal may show few characters.
        sys.stdout.reconfigure(errors="replace")


_prepare_streams()


def _leave(signum: int, frame: object) -> None:
    close_all = getattr(sys.modules.get("marlcore.memory.segment"), "close_all", None)
    if close_all is not None:
        close_all()
    os._exit(130)


# Until a run has processes, Ctrl-C exits at once, without a traceback from an import or from the compiler of kernels.
signal.signal(signal.SIGINT, _leave)

# name: (options, summary); module and function are cli.<name>.main
COMMANDS = {
    "train": ("[--env ENV] [--algo ALGO] [--resume RUN] [OPTIONS]", "train every agent of an environment"),
    "eval": (
        "RUN [--episodes N] [--which best] [--video FILE]",
        "play episodes with a run's policies, and print their returns",
    ),
    "export": ("RUN --policy NAME --file FILE", "write a policy of a run as ONNX or TorchScript"),
    "top": ("[RUN] [--once] [--json]", "show a live run: rates, lag, waits and restarts"),
    "bench": ("[--json]", "measure the core on this machine, each call beside its bound"),
    "gc": ("[--dry-run]", "remove shared memory that no process holds, and stale kernel caches"),
    "warmup": ("", "compile the kernels now, so that no first batch waits for them"),
    "doctor": ("[--json]", "check this machine, with advice on each finding"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line.

    Returns: 0 on success; 1 if a worker failed, the doctor found a problem, kernels could not be cached, or the reader
        of the output closed its pipe early; 2 for bad input; 130 after Ctrl-C.
    """
    try:
        try:
            return _main(argv)
        finally:
            sys.stdout.flush()
    except OSError as error:  # from standard output: `_run` reports all other OSErrors
        # Python flushes again at exit: let that succeed.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        if isinstance(error, BrokenPipeError):  # the reader, such as `head -1`, has exited
            return 1
        sys.stderr.write(f"marlcore: standard output: {error.strerror or error}\n")
        return 2


def _main(argv: list[str] | None) -> int:
    command, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if command in COMMANDS:
        return _run(command, arguments)
    if command == "--version":
        from . import __version__

        sys.stdout.write(f"marlcore {__version__}\n")
        return 0
    wants_help = command in ("--help", "-h")
    unknown = "" if wants_help or not command else f"marlcore: expected one of {', '.join(COMMANDS)}, got {command!r}\n"
    (sys.stdout if wants_help else sys.stderr).write(_usage() + unknown)
    return 0 if wants_help else 2


def _usage() -> str:
    lines = []
    for name, (options, summary) in COMMANDS.items():
        lines += [f"marlcore {name} {options}".rstrip(), f"    {summary}"]
    return "usage: " + "\n       ".join([*lines, "marlcore COMMAND --help", "    all options", "marlcore --version\n"])


def _run(command: str, arguments: list[str]) -> int:
    from .checks import printable
    from .errors import MarlcoreError, WorkerFailed
    from .lazy import missing
    from .notices import say_always

    try:
        os.getcwd()
    except FileNotFoundError:  # some libraries exit the process in a deleted directory
        sys.stderr.write("marlcore: expected a working directory that exists, got a deleted one\n")
        return 2
    say_always()
    try:
        return int(import_module(f".cli.{command}", __package__).main(arguments))
    except WorkerFailed as error:
        sys.stderr.write(f"marlcore: {error}\n")
        return 1
    except ModuleNotFoundError as error:
        sys.stderr.write(printable(f"marlcore: {missing(f'marlcore {command}', error)}") + "\n")
        return 2
    except (ValueError, TypeError, ImportError, OSError, MarlcoreError) as error:
        if isinstance(error, OSError) and error.filename is None and _output_fails(error):
            raise
        too_many_files = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        line = re.sub("^env_fn: (ValueError: environment: )?", "--env: ", str(error))
        sys.stderr.write(f"marlcore: {printable(line)}{'; raise `ulimit -n`' if too_many_files else ''}\n")
        return 2
    except KeyboardInterrupt as stop:
        sys.stderr.write(printable("marlcore: stopped" + _how_to_resume(getattr(stop, "folder", ""))) + "\n")
        return 130


def _how_to_resume(run_dir: str) -> str:
    from pathlib import Path

    from .record import has_all_steps

    if not run_dir:
        return ""
    folder = Path(run_dir)  # of one run, or of several runs with different seeds
    configs = [*folder.glob("config.json")] or sorted(folder.glob("*/config.json"))
    if unfinished := [shlex.quote(str(path.parent)) for path in configs if not has_all_steps(path.parent)]:
        return f"; resume with marlcore train --resume {', and likewise '.join(unfinished)}"
    where = shlex.quote(run_dir)
    return f"; the run had taken all its steps; its metrics, curves and last checkpoints are in {where}"


def _output_fails(error: OSError) -> bool:
    """Whether the error comes from standard output, because the disk is full or the pipe's reader has ended."""
    try:
        if getattr(sys.stdout, "write_through", False):  # without a buffer, no failed text is left to flush
            sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
