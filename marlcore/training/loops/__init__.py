"""The loops: acting, learning and evaluating, and what they hold: seats, policies, players, whole episodes.

A loop gets everything that it uses as an argument. This room starts no process, opens no file, and knows neither
shared memory nor a run directory.
"""

from .actor import act, act_until_done, observe
from .device import choose_device
from .episodes import counted, play
from .evaluation import Evaluation
from .evaluator import Candidate, CommonGames, Evaluator, Games, Report
from .finite import FiniteCheck
from .first_priorities import FirstPriorities
from .learner import Feed, Learner, catch_up, learn_until_stopped
from .normalizer import Normalizer
from .players import Player, ScriptedPlayer, choose_by_number, reward_by_number
from .policy import ActingModel, Policy, PolicyModel, PolicyPlayer, PublishedPolicy, exploration_of
from .publications import Publications
from .seat import LEARNS, Ended, Seat
