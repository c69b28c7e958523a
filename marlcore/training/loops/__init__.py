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

__all__ = [
    "LEARNS",
    "ActingModel",
    "Candidate",
    "CommonGames",
    "Ended",
    "Evaluation",
    "Evaluator",
    "Feed",
    "FiniteCheck",
    "FirstPriorities",
    "Games",
    "Learner",
    "Normalizer",
    "Player",
    "Policy",
    "PolicyModel",
    "PolicyPlayer",
    "Publications",
    "PublishedPolicy",
    "Report",
    "ScriptedPlayer",
    "Seat",
    "act",
    "act_until_done",
    "catch_up",
    "choose_by_number",
    "choose_device",
    "counted",
    "exploration_of",
    "learn_until_stopped",
    "observe",
    "play",
    "reward_by_number",
]
