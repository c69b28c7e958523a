"""What a run leaves behind: its directory, checkpoints, metrics and their sinks, progress on the screen, curves.

Each file that is read back is verified. This room never touches a row, a lane or a model's meaning.
"""

from .canvas import canvas, say_that_none_ended
from .checkpoints import KeptCheckpoints, kept_steps, load_checkpoint, save_checkpoint
from .curves import draw, draw_runs
from .describe import check_resumed, describe, described_run
from .files import read_json, read_sealed, write_atomically, write_json, write_sealed
from .monitor import STOPPING, Monitor, Status
from .policies_file import described_policies, write_policies
from .progress import Progress, final_returns, summary
from .run_directory import (
    RUNS,
    RunDirectory,
    agent_order,
    checkpoint_path,
    has_all_steps,
    has_ended,
    read_config,
    setup_logging,
)
from .sinks import Sink, open_sinks, read_metrics
from .trust import check_trusted
