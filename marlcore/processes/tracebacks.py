"""Tracebacks of the user's code: without the frames of this package that only carried the error on."""

import os
from collections.abc import Iterator
from traceback import FrameSummary, StackSummary, TracebackException

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def short_traceback(error: BaseException) -> str | None:
    """The traceback without the package's frames, save those that called into other code.

    None if no frame would be left out; empty if none is of other code, since the error is the package's own.
    """
    whole = TracebackException.from_exception(error)
    stacks = [(part, _foreign(part.stack)) for part in _chain(whole)]
    if not any(kept for _, kept in stacks):
        return ""
    if all(len(kept) == len(part.stack) for part, kept in stacks):
        return None
    for part, kept in stacks:
        part.stack = StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]  # no heading then
    return "".join(whole.format())


def _chain(part: TracebackException | None) -> Iterator[TracebackException]:
    if part is not None:
        yield part
        for before in (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())):
            yield from _chain(before)


def _foreign(stack: StackSummary) -> list[FrameSummary]:
    """The frames of other code, each first one behind the frame that called it."""
    foreign = [not frame.filename.startswith(PACKAGE) for frame in stack]
    after = [*foreign[1:], False]
    return [frame for frame, *keeps in zip(stack, foreign, after, strict=True) if any(keeps)]
