"""The first page of a command's help: the options that most users need, shown without importing tyro and torch."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

from ..field_docs import field_docs
from .options import option_of

_INDENT = " " * 4
_WIDEST = 120


def first_page(usage: str, about: str, options: Mapping[str, Any], more: str) -> str:
    """Returns the page.

    Args:
        options: by dotted name, the dataclass object that has the option as a field, whose value is the default.
        more: how to see all options.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines = [f"usage: {usage}", "", *textwrap.wrap(about, width), ""]
    for name, owner in options.items():
        last = name.rpartition(".")[2]
        value = getattr(owner, last)
        kind: Any = type(owner)
        said = field_docs(kind)[last].partition(". ")[0].removesuffix(".")
        default = "" if value in (None, (), "") else f" (default: {value})"
        lines += textwrap.wrap(f"  {option_of(name)}: {said}{default}", width, subsequent_indent=_INDENT)
    return "\n".join([*lines, "", *textwrap.wrap(more, width), ""])
