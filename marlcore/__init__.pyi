# Core
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
from .envs import NamedEnvironment as NamedEnvironment
from .envs import RunStep as RunStep
from .envs import TreasureHunt as TreasureHunt
from .envs import run_step as run_step
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
from .spaces import Spaces as Spaces
from .spec import Ragged as Ragged
from .training import ActorConfig as ActorConfig
from .training import CheckpointEvent as CheckpointEvent
from .training import Choice as Choice
from .training import ClusterConfig as ClusterConfig
from .training import Config as Config
from .training import Constant as Constant
from .training import Evaluation as Evaluation
from .training import EvaluationConfig as EvaluationConfig
from .training import EvaluationEvent as EvaluationEvent
from .training import ExplorationConfig as ExplorationConfig
from .training import Exponential as Exponential
from .training import LearnerConfig as LearnerConfig
from .training import Linear as Linear
from .training import LoadedPolicy as LoadedPolicy
from .training import LogUniform as LogUniform
from .training import MetricsConfig as MetricsConfig
from .training import MixedPlayer as MixedPlayer
from .training import Piecewise as Piecewise
from .training import PopulationConfig as PopulationConfig
from .training import PSROResult as PSROResult
from .training import ReplayConfig as ReplayConfig
from .training import Result as Result
from .training import Run as Run
from .training import Schedule as Schedule
from .training import SelfPlayConfig as SelfPlayConfig
from .training import Status as Status
from .training import Stop as Stop
from .training import StopConfig as StopConfig
from .training import SupervisionConfig as SupervisionConfig
from .training import Uniform as Uniform
from .training import best_run as best_run
from .training import evaluate as evaluate
from .training import exploitability as exploitability
from .training import load_policy as load_policy
from .training import preset as preset
from .training import psro as psro
from .training import start as start
from .training import train as train
from .training import train_offline as train_offline
from .training import train_population as train_population
from .training import train_seeds as train_seeds

# isort: split
# Many machines
from . import cluster as cluster

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
from .errors import SegmentCorrupt as SegmentCorrupt
from .errors import SegmentNotFound as SegmentNotFound
from .errors import StaleHandle as StaleHandle
from .errors import StopRun as StopRun
from .errors import UsedByTwoThreads as UsedByTwoThreads
from .errors import WorldModelFailed as WorldModelFailed

__version__: str
