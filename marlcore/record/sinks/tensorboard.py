"""Writes metrics as TensorBoard scalars, and the run's settings as TensorBoard hyperparameters."""

import json
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...processes import Metric
from ..files import opener, read_json

EPISODES = 100  # number of episodes in the mean return at the end


class TensorBoardSink:
    """Writes an event file to run_dir/tensorboard, with tags "agent/name"; a resumed run adds another file.

    The first file begins with the settings and hyperparameters of config.json, by dotted name, for the HParams tab.
    For comparisons of runs, each file ends with "final/agent/episode_return": the mean over the agent's last episodes.
    """

    def __init__(self, run_dir: Path) -> None:
        # Imported here, since few runs need them. tensorboard's EventFileWriter would start a second thread, and
        # torch's SummaryWriter would import torch.
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self._event, self._summary = Event, Summary
        self._began: float | None = None
        directory = run_dir / "tensorboard"
        directory.mkdir(mode=0o755, exist_ok=True)
        earlier = len(list(directory.iterdir()))  # event files of a run that is resumed
        path = directory / f"events.out.tfevents.{int(time.time())}.{earlier}"
        self._records = RecordWriter(open(path, "xb", opener=opener))  # noqa: SIM115 (`close`)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if not earlier:
            settings = {**read_json(run_dir / "config.json", editable=True), "run_dir": None}
            described = hparams_pb(dict(_dotted(settings)))
            self._records.write(Event(wall_time=time.time(), summary=described).SerializeToString())
        self._last: dict[str, deque[Metric]] = defaultdict(partial(deque, maxlen=EPISODES))  # episodes' ends, by agent

    def record(self, metric: Metric) -> None:
        if metric.name == "episode_return":
            self._last[metric.agent].append(metric)
        self._write(metric)

    def _write(self, metric: Metric) -> None:
        if self._began is None:  # of a resumed run, the start of its first part
            self._began = time.time() - metric.time_s
        tag = f"{metric.agent}/{metric.name}" if metric.agent else metric.name
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=float(metric.value))])
        event = self._event(wall_time=self._began + metric.time_s, step=int(metric.step), summary=summary)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        for agent, ends in self._last.items():
            mean = sum(end.value for end in ends) / len(ends)
            self._write(Metric(ends[-1].time_s, ends[-1].step, f"final/{agent}", "episode_return", mean))
        self._records.close()


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Yields nested settings by dotted name, with lists as JSON and without None."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value if isinstance(value, bool | int | float | str) else json.dumps(value)
