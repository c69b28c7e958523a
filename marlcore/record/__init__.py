"""Records a run: its directory, checkpoints, metrics and their sinks, progress on the screen, curves."""

from .best_run import best_run
from .callback import Callback, CallbackSink, Stop, check_callback
from .checkpoints import (
    NO_COUNTS,
    InitFrom,
    KeptCheckpoints,
    initial_states,
    kept_steps,
    load_checkpoint,
    save_checkpoint,
    saved_checkpoints,
    taken_over,
)
from .curves import canvas, plot_run, plot_runs, say_that_none_ended
from .descriptions import (
    changed_hyperparameters,
    check_resumed,
    check_steps_left,
    describe,
    described_policies,
    described_run,
    environment_of,
    fixed_settings,
    write_policies,
)
from .events import CHECKPOINT_S, EVALUATION_S, SKIPPED, CheckpointEvent, EvaluationEvent
from .files import believed, read_json, read_sealed, write_atomically, write_json, write_sealed
from .hold import Hold
from .monitor import Monitor, Status
from .progress import LATE, Progress, SharedProgress, Table, final_returns, summary
from .remote import RemoteCopy, fetch_run, is_address
from .run_directory import (
    LOCK,
    RUNS,
    RunDirectory,
    agent_order,
    check_same_run,
    check_unused,
    checkpoint_path,
    dated_paths,
    durable_note,
    has_all_steps,
    has_ended,
    holds_files,
    located,
    lock_directory,
    read_config,
    read_progress,
    steps_taken,
    unkept_steps,
)
from .sinks import Sink, each_metric, open_sinks, read_metrics
from .stop_conditions import StopConditions
from .trust import CONTINUED, UNPICKLED, WEIGHTS, open_run
