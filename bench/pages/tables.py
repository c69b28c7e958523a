"""Tables of figures in Markdown, and the line that says what made them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..figures import four_digits


def markdown(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [[*columns], *([cell(value) for value in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def records(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows with the same names, which are its heads; of fractions it has four digits."""
    return markdown((name.replace("_", " ") for name in rows[0]), (four_digits(row).values() for row in rows))


def cell(value: Any) -> str:
    """Text as it is, numbers with commas, several with semicolons between them; None is empty."""
    if isinstance(value, list):
        return "; ".join(map(cell, value))
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}".removesuffix(".0" if abs(value) >= 100 else "")


def rounded(value: float) -> float | int:
    """Three digits, without a fraction from 100 on."""
    return int(f"{value:.0f}") if abs(value) >= 100 else float(f"{value:.3g}")


def origin(figures: Mapping[str, Any]) -> str:
    """A paragraph: what made the figures, when and where."""
    where = figures["machine"].values() if isinstance(figures["machine"], dict) else [figures["machine"]]
    forms = {"command": "`{}`", "date": "{}", "commit": "commit {}", "load": "load {}", "software": "{}", "note": "{}"}
    said = {name: form.format(figures[name]) for name, form in forms.items() if isinstance(figures.get(name), str)}
    before = [said.pop(name) for name in ("command", "date", "commit") if name in said]
    return "; ".join([*before, *where, *said.values()]) + ".\n"


def origins(records: Mapping[str, Any], *common: str) -> list[str]:
    """A paragraph for all records with the same of these; names them, unless all are the same."""
    names_of: dict[str, list[str]] = {}
    for name, record in records.items():
        names_of.setdefault(origin({key: record[key] for key in common if key in record}), []).append(name)
    return [f"{'; '.join(names)}: {text}" for text, names in names_of.items()] if len(names_of) > 1 else [*names_of]
