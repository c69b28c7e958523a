"""Writes, continues and reads metrics.csv, a run's own record of its metrics."""

import csv
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ...checks import as_path, brief
from ...closing import ClosedAfterError
from ...errors import ClosedError
from ...memory import try_lock
from ...processes import Metric
from ...regular_files import check_regular, naming, open_regular, read_regular
from ..files import opener, read_json

PROGRESS = "checkpoints/run.json"  # in the directory of metrics.csv

_HEADER = ["time_s", "step", "agent", "name", "value"]


class CsvSink:
    """Writes a metrics.csv; the mode "r+" continues an existing file after its last whole line.

    Raises OSError, or ValueError if another process writes the file or it is not a metrics.csv; nothing was changed.
    """

    def __init__(self, path: Path, mode: Literal["x", "r+"]) -> None:
        self._path = path
        self._raw = _Summed(path, f"{mode.rstrip('+')}+", opener=opener)
        self._file = io.TextIOWrapper(io.BufferedWriter(self._raw), encoding="utf-8", newline="")
        with ClosedAfterError(self._file):
            check_regular(path, self._file.fileno())
            # Keeps out marlcore 0.2, which locks this file exclusively. Other users can only share the lock.
            if not try_lock(self._file.fileno(), 0, exclusive=False):
                expected = "resume: expected a run that has ended"
                raise ValueError(f"{expected}, got {str(path.parent)!r}, which is still running")
            self._rows = csv.writer(self._file, lineterminator="\n")
            if mode == "x":
                self._rows.writerow(_HEADER)
                self._file.flush()
            else:
                for _ in each_metric(path):  # raises ValueError if it is not a metrics.csv
                    pass
                whole, newline, _ = path.read_bytes().rpartition(b"\n")
                os.truncate(path, len(whole) + len(newline))
                self._raw.take(whole + newline)

    def size_at(self, step: int, keep_saved: bool = True) -> int:
        """Returns the file's size without the rows after `step`, which the resumed run repeats.

        With `keep_saved`, counts all rows up to the last saved progress.
        """
        data = self._path.read_bytes()
        size = max(_saved(self._path)[0] if keep_saved else 0, data.index(b"\n") + 1)
        lines = io.StringIO(data[size:].decode(errors="surrogateescape"), newline="").readlines()
        rows, whole = csv.reader(lines), 0
        for row in rows:
            if step == 0 or int(row[1]) > step:
                break
            whole = rows.line_num
        return size + len("".join(lines[:whole]).encode(errors="surrogateescape"))

    def resume_at(self, size: int) -> None:
        """Continues the file after its first `size` bytes; the others stay until `cut`."""
        self._raw.take(self._path.read_bytes()[:size])

    def cut(self) -> None:
        self._raw.truncate(self._raw.size)

    def record(self, metric: Metric) -> None:
        """Appends a metric, buffered until `flush`. Raises ClosedError, or OSError if a write failed."""
        if self._file.closed:
            raise ClosedError(f"{str(self._path)!r}: expected an open file, got a closed one")
        # repr is the shortest text that reads back as the same float; float() since NumPy's repr differs.
        time_s, value = repr(float(metric.time_s)), repr(float(metric.value))
        with self._naming():
            self._rows.writerow([time_s, int(metric.step), metric.agent, metric.name, value])

    def flush(self) -> None:
        """Passes everything recorded so far to the operating system. Raises OSError if a write failed."""
        with self._naming():
            self._file.flush()

    def sync(self) -> list[int]:
        """Writes everything recorded so far to disk; returns the file's size in bytes and CRC-32. Raises OSError."""
        self.flush()
        with self._naming():
            os.fsync(self._raw.fileno())
        return [self._raw.size, self._raw.crc]

    def close(self) -> None:
        """Flushes and closes the file, even if flushing raises OSError; closing twice is fine."""
        with self._naming():
            self._file.close()

    def _naming(self) -> AbstractContextManager[None]:
        return naming(self._path, "its whole lines are kept")


class _Summed(io.FileIO):
    size, crc = 0, 0

    def take(self, content: bytes) -> None:
        """Continues the file after `content`, which the file already holds."""
        self.size, self.crc = len(content), zlib.crc32(content)
        self.seek(self.size)

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.size, self.crc = self.size + count, zlib.crc32(memoryview(data)[:count], self.crc)
        return count


def read_metrics(path: str | Path) -> list[Metric]:
    """Reads a metrics.csv in the order of writing; drops a last line without a newline, which a killed run left.

    In a run's directory, verifies the file up to the run's last saved progress.

    Raises ValueError if the file is not a metrics.csv, has a line that is not a metric, or was changed.
    """
    return list(each_metric(path))


def each_metric(path: str | Path, end: int | None = None) -> Iterator[Metric]:
    """Does `read_metrics` up to byte `end`, but yields one metric at a time, which saves memory with long runs."""
    expected = ",".join(_HEADER)
    with open_regular(as_path("path", path)) as file:  # reads the header first, since the file may be huge
        header = file.readline(2 * len(expected)).decode(errors="replace").rstrip("\r\n")
    size, crc = _saved(Path(path))
    data = read_regular(path)  # read after the saved progress, since a live run appends
    if len(data) < size or zlib.crc32(memoryview(data)[:size]) != crc:
        raise ValueError(f"{str(path)!r}: expected its first {size:,} bytes as the run wrote them, got changed bytes")
    data = data[: data.rfind(b"\n", 0, end) + 1]
    lines = _lines(data)
    if header != expected or not next(lines, ""):
        raise ValueError(f"{str(path)!r}: expected the header {expected}, got {brief(header)}")
    rows = csv.reader(lines)
    try:
        for time_s, step, agent, name, value in rows:
            yield Metric(float(time_s), int(step), sys.intern(agent), sys.intern(name), float(value))
    except (ValueError, csv.Error) as error:
        (line,) = islice(_lines(data), rows.line_num, rows.line_num + 1)
        got = f"in line {1 + rows.line_num}, got {brief(line)}"
        raise ValueError(f"{str(path)!r}: expected {expected} {got} ({error})") from None


def _lines(data: bytes) -> Iterator[str]:
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors="replace", newline="")


def _saved(path: Path) -> tuple[int, int]:
    """Returns the file's size in bytes and its CRC-32 when the run last saved its progress."""
    progress = path.parent / PROGRESS
    saved = (read_json(progress).get("metrics") if os.path.lexists(progress) else None) or [0, 0]
    if not isinstance(saved, list) or [*map(type, saved)] != [int, int]:
        raise ValueError(f"{str(progress)!r}: metrics: expected a length and a checksum, got {brief(saved)}")
    return saved[0], saved[1]
