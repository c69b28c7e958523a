"""Metrics as TensorBoard's scalars."""

import time
from contextlib import suppress
from pathlib import Path

from ....processes import Metric
from ..files import make_directory, opener


class TensorBoardSink:
    """Writes an event file to run_dir/tensorboard, tag "agent/name"; a resumed run adds another file."""

    def __init__(self, run_dir: Path) -> None:
        # Imported here, since workers import this module only for Metric. tensorboard's EventFileWriter would start a
        # second thread, and torch's SummaryWriter would import torch.
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self._event, self._summary = Event, Summary
        self._began: float | None = None
        directory = run_dir / "tensorboard"
        with suppress(FileExistsError):
            make_directory(directory)
        before = len(list(directory.iterdir()))  # event files before a resume
        path = directory / f"events.out.tfevents.{int(time.time())}.{before}"
        self._records = RecordWriter(open(path, "xb", opener=opener))  # noqa: SIM115 (`close`)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def record(self, metric: Metric) -> None:
        if self._began is None:  # the start of the whole run, if it is resumed
            self._began = time.time() - metric.time_s
        tag = f"{metric.agent}/{metric.name}" if metric.agent else metric.name
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=float(metric.value))])
        event = self._event(wall_time=self._began + metric.time_s, step=int(metric.step), summary=summary)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()
