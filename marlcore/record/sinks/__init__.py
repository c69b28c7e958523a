"""The sinks that take a run's metrics.

The parent writes metrics.csv itself, since that file is the run's own record. Every other sink has a queue and a thread
of its own, so that it delays nothing else; metrics that it loses are counted.
"""

from .background import Background, Sink, Sinks, open_sinks
from .csv import CsvSink, each_metric, read_metrics
from .tensorboard import TensorBoardSink
from .wandb import WandbSink
