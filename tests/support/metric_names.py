"""The names of metrics: those that docs/metrics.md explains, and those that a run logged."""

import re
from pathlib import Path

from marlcore.record import read_metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def explained() -> list[str]:
    """The page's rows, in which <...> stands for any text."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.M)


def unexplained(run_dir: str | Path, schedules: tuple[str, ...] = ()) -> list[str]:
    """The metrics of a run that the page lacks; schedules of the run have one row for all of them."""
    rows = "|".join(re.sub(r"<\w+>", r"[^/]+", name) for name in explained() if not name.startswith("<"))
    logged = {metric.name for metric in read_metrics(Path(run_dir) / "metrics.csv")}
    return sorted(name for name in logged.difference(schedules) if not re.fullmatch(rows, name))
