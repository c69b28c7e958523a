"""The sinks of a run's metrics: one stream goes to several sinks; each sink has its own file.

The parent writes metrics.csv itself, since that file is the run's own record. Every other sink works behind a queue, in
its own thread: it slows no other part, and metrics that it loses are counted. Sinks never read shared memory.
"""

from .background import Background, Sink, Sinks, open_sinks
from .csv import CsvSink, each_metric, read_metrics
from .tensorboard import TensorBoardSink
from .wandb import WandbSink
