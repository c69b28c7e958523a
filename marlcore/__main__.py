"""The command line: `marlcore train`."""

from __future__ import annotations

import os
import signal
import sys


def _leave(signum: int, frame: object) -> None:
    os._exit(130)


# Until a run has something to clean up, Ctrl-C just ends the process; no traceback comes out of an import.
signal.signal(signal.SIGINT, _leave)

USAGE = """\
usage: marlcore train [--env ENV] [--algo dqn|iqn] [OPTIONS]   train every agent of an environment
       marlcore train --help                                    all options
       marlcore --version
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command line.

    Returns: 0, or 1 when a worker failed, 2 for bad input, 130 after Ctrl-C.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["train"]:
        return _train(arguments[1:])
    if arguments[:1] == ["--version"]:
        from . import __version__

        sys.stdout.write(f"marlcore {__version__}\n")
        return 0
    asked = arguments[:1] in (["--help"], ["-h"])
    (sys.stdout if asked else sys.stderr).write(USAGE)
    return 0 if asked else 2


def _train(arguments: list[str]) -> int:
    from .errors import MarlcoreError, WorkerFailed

    try:
        from .cli import train

        train(arguments)
    except WorkerFailed as error:
        sys.stderr.write(f"marlcore: {error}\n")
        return 1
    except (ValueError, TypeError, ImportError, OSError, MarlcoreError) as error:
        sys.stderr.write(f"marlcore: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("marlcore: stopped\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
