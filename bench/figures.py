"""The stored figures of docs/figures, one JSON file a program or a program's machine; and their tables in Markdown."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = Path(__file__).parents[1] / "docs" / "figures"


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def write(path: Path, figures: dict[str, Any]) -> None:
    """Writes one entry a line, so that a renewed file differs only where figures do; see `four_digits`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_lines(four_digits(figures), "", 2) + "\n")


def file_name(kind: str, owner: str) -> str:
    """The name of a machine's or GPU's file: kind-owner, in lower case, with hyphens."""
    return f"{kind}-" + re.sub(r"[^a-z0-9]+", "-", owner.lower()).strip("-")


@contextmanager
def picture(path: Path, *panels: int, dpi: int = 110, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its panels, without the frame's upper and right side, saved at the end with 64 colours."""
    from matplotlib.figure import Figure  # a second, which programs without a picture save

    figure = Figure(dpi=dpi, layout="constrained", **options)
    axes = figure.subplots(*panels, squeeze=False).ravel()
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    yield figure, axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    use_fewer_colours(path)


def use_fewer_colours(picture: Path) -> None:
    """Saves a picture again with 64 colours, in a third of the bytes."""
    Image.open(picture).quantize(64).save(picture, optimize=True)


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def four_digits(value: Any) -> Any:
    """Rounds each fraction, at any depth, to four digits."""
    if isinstance(value, dict):
        return {key: four_digits(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [four_digits(entry) for entry in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _lines(value: Any, indent: str, depth: int) -> str:
    if not (isinstance(value, dict) and value and depth):
        return json.dumps(value)
    inner = indent + "  "
    entries = (f"{inner}{json.dumps(key)}: {_lines(entry, inner, depth - 1)}" for key, entry in value.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


# ---- tables ----


def markdown(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [[*columns], *([cell(value) for value in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def records(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows with the same names, which head its columns; fractions get four digits."""
    return markdown((name.replace("_", " ") for name in rows[0]), (four_digits(row).values() for row in rows))


def by_name(title: str, rows: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str] | None = None) -> str:
    """A line for each name; a column for each figure that any row has, or for those of `titles`; with three digits."""
    titles = titles or {name: name for row in rows.values() for name in row}
    lines = ([name, *(rounded(row[key]) if key in row else None for key in titles)] for name, row in rows.items())
    return markdown([title, *titles.values()], lines)


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
    """A paragraph for each group of records that agree in the fields `common`; it names them, unless all agree."""
    names_of: dict[str, list[str]] = {}
    for name, record in records.items():
        names_of.setdefault(origin({key: record[key] for key in common if key in record}), []).append(name)
    return [f"{'; '.join(names)}: {text}" for text, names in names_of.items()] if len(names_of) > 1 else [*names_of]
