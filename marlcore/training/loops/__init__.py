"""The loops: acting, learning and evaluating, and what they hold: seats, policies, players, whole episodes.

A loop gets everything that it uses as an argument. This room starts no process, opens no file, and creates or attaches
nothing in shared memory.
"""

from .actor import act, act_until_done, cut_episodes, observe
from .episodes import WINNER, Evaluation, compared, counted, play
from .evaluator import Candidate, Evaluator, Games, GoesOn, Report, play_in_common
from .goals import with_functions_of
from .learner import Batches, Learner, catch_up, learn, learn_until_stopped
from .model import ActingModel, FiniteCheck, Normalizer, PolicyModel, build_model, choose_device, run_seed
from .players import LATEST, Player, PlayersByNumber, ScriptedPlayer, hides_joint
from .policy import Policy, PolicyPlayer, PublishedPolicy, exploration_of
from .seat import ByName, Ended, Seat, part_of_tag, route
from .shared_seat import SharedSeat
