"""What happens while a test waits: a call a moment later, a signal, other processes."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from marlcore.memory import interrupt_waits_with


class Rang(Exception):
    """What `ring` raises."""


def ring() -> NoReturn:
    """A handler for the fixture `alarm`."""
    raise Rang


@contextmanager
def soon(call: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Another thread makes the call once a wait of this process is about to sleep; the block ends when it has."""
    thread = threading.Thread(target=call, args=arguments)

    def about_to_sleep() -> None:
        interrupt_waits_with(before)
        thread.start()

    before = interrupt_waits_with(None)
    interrupt_waits_with(about_to_sleep)
    try:
        yield
    finally:
        interrupt_waits_with(before)
    assert thread.ident is not None, "nothing waited"
    thread.join()


def leave_a_child() -> None:
    """Forks a child that outlives this process, prints its number, and waits for its end."""
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(done, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(ready, 1)
    print(child, flush=True)
    os.waitpid(child, 0)


@contextmanager
def running(*processes: BaseProcess) -> Iterator[None]:
    """The processes run; the block ends when they have, all of them well."""
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
