# Core
from .compiled import Compiled as Compiled
from .processes import Metric as Metric
from .processes import WorkerContext as WorkerContext
from .processes import Workers as Workers
from .queue import TrajectoryQueue as TrajectoryQueue
from .queue import TrajectoryReader as TrajectoryReader
from .replay import Hindsight as Hindsight
from .replay import Mixture as Mixture
from .replay import Prefetch as Prefetch
from .replay import Prioritized as Prioritized
from .replay import RateLimiter as RateLimiter
from .replay import ReplayBuffer as ReplayBuffer
from .replay import Sampler as Sampler
from .replay import Sequence as Sequence
from .spec import Field as Field
from .spec import TransitionSpec as TransitionSpec
from .transitions import Batch as Batch
from .transitions import VectorWriter as VectorWriter
from .transitions import Writer as Writer
from .weights import ParameterStore as ParameterStore

# isort: split
from .errors import LaneBusy as LaneBusy
from .errors import MarlcoreError as MarlcoreError
from .errors import NotEnoughData as NotEnoughData
from .errors import SharedMemoryFull as SharedMemoryFull
from .errors import WorkerFailed as WorkerFailed

# isort: split
# Training, with pip install "marlcore[train]"
from .algos import BC as BC
from .algos import COMA as COMA
from .algos import CQL as CQL
from .algos import DQN as DQN
from .algos import HAPPO as HAPPO
from .algos import IQN as IQN
from .algos import MADDPG as MADDPG
from .algos import MAPPO as MAPPO
from .algos import MATD3 as MATD3
from .algos import PPO as PPO
from .algos import QMIX as QMIX
from .algos import R2D2 as R2D2
from .algos import SAC as SAC
from .algos import TD3 as TD3
from .algos import TD3BC as TD3BC
from .algos import VDN as VDN
from .algos import RecurrentPPO as RecurrentPPO
from .config import ActorConfig as ActorConfig
from .config import Choice as Choice
from .config import ClusterConfig as ClusterConfig
from .config import Config as Config
from .config import Constant as Constant
from .config import EvaluationConfig as EvaluationConfig
from .config import ExplorationConfig as ExplorationConfig
from .config import Exponential as Exponential
from .config import LearnerConfig as LearnerConfig
from .config import Linear as Linear
from .config import LogUniform as LogUniform
from .config import MetricsConfig as MetricsConfig
from .config import Piecewise as Piecewise
from .config import PopulationConfig as PopulationConfig
from .config import ReplayConfig as ReplayConfig
from .config import Schedule as Schedule
from .config import SelfPlayConfig as SelfPlayConfig
from .config import StopConfig as StopConfig
from .config import SupervisionConfig as SupervisionConfig
from .config import Uniform as Uniform
from .envs import NamedEnvironment as NamedEnvironment
from .envs import RunStep as RunStep
from .envs import TreasureHunt as TreasureHunt
from .envs import run_step as run_step
from .evaluation import LoadedPolicy as LoadedPolicy
from .evaluation import MixedPlayer as MixedPlayer
from .evaluation import evaluate as evaluate
from .evaluation import load_policy as load_policy
from .interfaces import Action as Action
from .interfaces import Algorithm as Algorithm
from .interfaces import Environment as Environment
from .interfaces import Outcome as Outcome
from .interfaces import QueueSource as QueueSource
from .interfaces import ReplaySource as ReplaySource
from .interfaces import Trainer as Trainer
from .interfaces import Turn as Turn
from .interfaces import Update as Update
from .interfaces import VectorEnvironment as VectorEnvironment
from .loops import Evaluation as Evaluation
from .meta import PSROResult as PSROResult
from .meta import exploitability as exploitability
from .meta import psro as psro
from .meta import train_population as train_population
from .meta import train_seeds as train_seeds
from .record import CheckpointEvent as CheckpointEvent
from .record import EvaluationEvent as EvaluationEvent
from .record import Status as Status
from .record import Stop as Stop
from .record import best_run as best_run
from .run import Result as Result
from .run import Run as Run
from .run import preset as preset
from .run import start as start
from .run import train as train
from .run import train_offline as train_offline
from .spaces import Spaces as Spaces
from .spec import Ragged as Ragged

# isort: split
# Many machines
from . import cluster as cluster

# isort: split
# Further names of the core
from .transitions import Durable as Durable

# isort: split
# Further errors
from .errors import CallbackFailed as CallbackFailed
from .errors import ClosedError as ClosedError
from .errors import Deadlocked as Deadlocked
from .errors import Diverged as Diverged
from .errors import EnvironmentFailed as EnvironmentFailed
from .errors import Fenced as Fenced
from .errors import LayoutMismatch as LayoutMismatch
from .errors import NotEnoughMemory as NotEnoughMemory
from .errors import NotHeld as NotHeld
from .errors import SegmentCorrupt as SegmentCorrupt
from .errors import SegmentNotFound as SegmentNotFound
from .errors import StaleHandle as StaleHandle
from .errors import StopRun as StopRun
from .errors import UsedByTwoThreads as UsedByTwoThreads
from .errors import WorldModelFailed as WorldModelFailed

__version__: str
