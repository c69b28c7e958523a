"""A program that is imported once, and run each time in a fork of the process that has it: `preloaded`.

The program has `main`, and may have `warm`, which loads what all its runs need.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Play = Callable[..., subprocess.CompletedProcess[str]]
PATIENCE_S = 300  # with one run


@contextmanager
def preloaded(program: Path, *first: object) -> Iterator[Play]:
    """Runs it like `core.python`, with `first` before the arguments of each run."""
    command = [sys.executable, "-W", "error", __file__, program.stem, *map(str, first)]
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        said = Path(name, "out"), Path(name, "err")

        def play(*arguments: object) -> subprocess.CompletedProcess[str]:
            assert server.stdin is not None and server.stdout is not None
            server.stdin.write(json.dumps([*map(str, (*said, *arguments))]) + "\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            return subprocess.CompletedProcess(command, code, *(path.read_text() for path in said))

        yield play


def serve(name: str) -> None:
    module = importlib.import_module(name)
    getattr(module, "warm", int)()
    from victims import fork, reap  # only now: some programs choose the core before it is loaded

    def play(out: str, err: str, *arguments: str) -> int:
        os.setpgid(0, 0)
        for fd, path in enumerate((os.devnull, out, err)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(opened, fd)
            os.close(opened)
        sys.argv += arguments
        signal.alarm(PATIENCE_S)
        return module.main() or 0

    for line in sys.stdin:
        code = reap(pid := fork(play, *json.loads(line)))
        with suppress(ProcessLookupError):  # what it forked ends with it, also if it hung
            os.killpg(pid, signal.SIGKILL)
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    serve(sys.argv[0])
