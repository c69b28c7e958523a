"""The sinks that take a run's metrics: metrics.csv, the run's own record, and others, which may lose metrics."""

from .background import Background, Sink, Sinks, open_sinks
from .csv import CsvSink, each_metric, read_metrics
from .tensorboard import TensorBoardSink
from .wandb import WandbSink
