"""Reads the strings below a dataclass's fields, which Python discards, for `help`, the command line and the docs."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

_WIDTH = 100  # of a line of `help`


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """Returns each field's doc string in one line, by field, a base's fields first; {} without the source code."""
    found: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        try:
            (tree,) = ast.parse(inspect.cleandoc(inspect.getsource(base))).body
        except (OSError, TypeError):  # the class was made at run time, or its file is missing
            continue
        assert isinstance(tree, ast.ClassDef)
        for above, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(above.target)] = " ".join(str(ast.literal_eval(below.value)).split())
    return MappingProxyType(found)


def list_fields_in_doc(kind: type) -> None:
    """Makes the class's `__doc__` list its fields after its own text; the source is read when `__doc__` is read."""
    known = vars(kind).get("__doc__")  # already a FieldsInDoc if `dataclass` makes the class again, with slots
    kind.__doc__ = known if isinstance(known, FieldsInDoc) else FieldsInDoc(known or "")  # type: ignore[assignment]


class FieldsInDoc:
    """A descriptor of `__doc__`.

    Attributes:
        text: the class's own text.
    """

    def __init__(self, text: str) -> None:
        self.text = inspect.cleandoc(text)

    def __get__(self, settings: object, kind: Any) -> str:
        if "__match_args__" not in vars(kind):  # `dataclass` is still making the class, and asks whether it has a doc
            return self.text
        docs = field_docs(kind)
        listed = [f"    {each.name}: {docs[each.name]}" for each in fields(kind) if each.name in docs]
        lines = [line for text in listed for line in textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 8)]
        return "\n".join([self.text, "", "Attributes:", *lines]) if lines else self.text
