"""The loops of acting, learning and evaluating, and their parts: collectors of transitions, players, whole episodes.

A loop gets everything that it uses as an argument. This room starts no process, opens no file, and creates or attaches
no shared memory.
"""

from .acting_policy import ActingPolicy
from .actor import act, act_until_done, cut_episodes, observe
from .collector import Collector, Ended, LeagueCollector, part_of_tag, route
from .episodes import WINNER, Evaluation, compared, counted, play
from .evaluator import Candidate, Evaluator, Games, GoesOn, play_in_common
from .first_priorities import ByName, FirstPriorities
from .followed_weights import FollowedWeights, exploration_of
from .goals import with_functions_of
from .learner import Batches, Learner, catch_up, learn, learn_while
from .model import FiniteCheck, Normalizer, PolicyModel, build_model, choose_device, run_seed
from .players import LATEST, Player, PlayersByNumber, ScriptedAtFirst, ScriptedPlayer, hides_joint
from .recorder import Recorder
