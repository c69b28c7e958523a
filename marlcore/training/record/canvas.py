"""A picture of a run: a PNG with a title, which viewers never see half written."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@contextmanager
def canvas(path: Path, title: str, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure, 1200 pixels wide and 100 times `height` high, that is written to `path` after the block, atomically."""
    # Imported here: matplotlib takes longer to import than marlcore itself.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, height), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(textwrap.fill(title, 100), fontsize=15, pad=12, parse_math=False)  # it may contain a dollar sign
    yield figure, axes
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    write_atomically(path, png.getvalue())


def say_that_none_ended(axes: Axes) -> None:
    """Says in the middle of an empty picture that no episode has ended."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", fontsize=15)
