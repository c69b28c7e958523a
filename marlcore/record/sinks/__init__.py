"""Where a run's metrics go: one stream, several sinks, a file each.

The parent writes metrics.csv itself, since that file is the run's own record. Every other sink works behind a queue, in
a thread of its own: it slows nobody, and what it loses is counted. Sinks never read shared memory.
"""

from .background import Background, Sink, Sinks, open_sinks
from .csv import CsvSink, each_metric, read_metrics
from .tensorboard import TensorBoardSink
from .wandb import WandbSink
