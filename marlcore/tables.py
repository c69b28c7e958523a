"""Tables no wider than the terminal: columns that do not fit move to a further table. A pipe gets plain text."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from .checks import printable


@dataclass(frozen=True)
class FittedTable:
    """A headline and a row for each name, drawn for the console's width; a table without rows is only the headline."""

    headline: Sequence[str]  # its parts, side by side where they fit
    label: str  # the title of the column of names
    titles: Sequence[str]  # of the columns, the most important first
    rows: Mapping[str, Sequence[str]]  # by name; a further table omits rows whose cells in it are all empty
    min_width: int = 0  # of a column, so that columns keep their width while numbers grow
    optional: Collection[str] = ()  # titles of columns drawn only if one table fits all columns

    def __post_init__(self) -> None:
        object.__setattr__(self, "headline", [*map(printable, self.headline)])
        object.__setattr__(self, "titles", [*map(printable, self.titles)])
        object.__setattr__(self, "rows", {printable(name): cells for name, cells in self.rows.items()})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Columns([Text(part, style="bold", overflow="fold") for part in self.headline], padding=(0, 2))
        names = min(max(map(cell_len, [self.label, *self.rows])), max(options.max_width // 3, cell_len(self.label)))
        room = options.max_width - names - 4  # less the padding of the column of names, and two lines
        needed = [self._width(i) + 3 for i in range(len(self.titles))]
        left = [i for i, title in enumerate(self.titles) if sum(needed) <= room or title not in self.optional]
        is_first = True
        while left and self.rows:
            count = max(1, sum(total <= room for total in accumulate(needed[i] for i in left)))
            yield self._table(left[:count], names, is_first)
            left, is_first = left[count:], False

    @property
    def plain(self) -> str:
        """The headline, the titles and the rows as lines without a frame, with tabs between cells."""
        rows = [[self.label, *self.titles], *([name, *cells] for name, cells in self.rows.items())]
        lines = ["  ".join(self.headline), *("\t".join(row) for row in rows if self.rows)]
        return "".join(f"{line}\n" for line in lines)

    def _width(self, i: int) -> int:
        return max(self.min_width, *map(cell_len, [self.titles[i], *(cells[i] for cells in self.rows.values())]))

    def _table(self, columns: Sequence[int], names: int, every_row: bool) -> Table:
        table = Table()
        table.add_column(self.label, width=names, no_wrap=True, overflow="ellipsis")
        for i in columns:
            table.add_column(self.titles[i], justify="right", width=self._width(i), no_wrap=True)
        for name, cells in self.rows.items():
            row = [cells[i] for i in columns]
            if every_row or any(row):
                table.add_row(Text(name), *row)
        return table


def print_fitted(table: FittedTable) -> None:
    """Prints a table on standard output: drawn on a terminal, otherwise plain."""
    if sys.stdout.isatty():
        Console().print(table)
    else:
        sys.stdout.write(table.plain)
        sys.stdout.flush()
