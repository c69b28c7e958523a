"""Tables no wider than the terminal: columns that do not fit move to a table below. A pipe gets plain text."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    rows: Mapping[str, Sequence[str]]  # a further table omits rows whose cells in it are all empty
    min_width: int = 0  # of a column, which keeps it steady while its numbers grow
    optional: Collection[str] = ()  # titles of columns drawn only if one table fits all columns

    def __post_init__(self) -> None:
        object.__setattr__(self, "headline", [*map(printable, self.headline)])
        object.__setattr__(self, "titles", [*map(printable, self.titles)])
        object.__setattr__(self, "rows", {printable(name): cells for name, cells in self.rows.items()})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        yield Columns([Text(part, style="bold", overflow="fold") for part in self.headline], padding=(0, 2))
        for number, columns in enumerate(self._stacked(width) if self.rows else ()):
            rows = {name: [cells[i] for i in columns] for name, cells in self.rows.items()}
            yield self._table(columns, {name: cells for name, cells in rows.items() if any(cells) or not number}, width)

    @property
    def plain(self) -> str:
        """Lines without a frame: the headline, and, with tabs between cells, the titles and the rows."""
        rows = [[self.label, *self.titles], *([name, *cells] for name, cells in self.rows.items())]
        lines = ["  ".join(self.headline), *("\t".join(row) for row in rows if self.rows)]
        return "".join(f"{line}\n" for line in lines)

    def _stacked(self, width: int) -> list[list[int]]:
        tables = self._filled(range(len(self.titles)), width)
        if len(tables) == 1:
            return tables
        return self._filled([i for i, title in enumerate(self.titles) if title not in self.optional], width)

    def _filled(self, columns: Iterable[int], width: int) -> list[list[int]]:
        tables: list[list[int]] = [[]]
        left = room = width - self._name_width(width) - 4  # less the first column's padding and two lines
        for i in columns:
            needed = self._width(i) + 3
            if needed > left and tables[-1]:
                tables.append([])
                left = room
            tables[-1].append(i)
            left -= needed
        return tables

    def _width(self, i: int) -> int:
        return max(self.min_width, *map(cell_len, [self.titles[i], *(cells[i] for cells in self.rows.values())]))

    def _name_width(self, width: int) -> int:
        return min(max(map(cell_len, [self.label, *self.rows])), max(width // 3, cell_len(self.label)))

    def _table(self, columns: Sequence[int], rows: Mapping[str, Sequence[str]], width: int) -> Table:
        table = Table()
        table.add_column(self.label, width=self._name_width(width), no_wrap=True, overflow="ellipsis")
        for i in columns:
            table.add_column(self.titles[i], justify="right", width=self._width(i), no_wrap=True)
        for name, cells in rows.items():
            table.add_row(Text(name), *cells)
        return table


def print_fitted(table: FittedTable) -> None:
    """Prints a table on standard output: drawn on a terminal, otherwise plain."""
    if sys.stdout.isatty():
        Console().print(table)
    else:
        sys.stdout.write(table.plain)
        sys.stdout.flush()
