"""Self-play: a policy learns against frozen copies of itself and scripted anchors, with a payoff table and evaluations.

In each actor, `Matches` assigns players to the collectors. In each learner, a `League` decides on the opponents and
their odds, and publishes them with the weights. The evaluator's `OpponentGames` play against the same opponents.
"""

from .league import League, plot_payoff
from .matches import Contender, Matches, report_result, results_in
from .opponent_games import OpponentGames
from .opponents import Opponents, make_beside_anchors
from .pool import SPAN, Pool, Snapshot
from .setup import (
    POLICY,
    SelfPlay,
    check_self_play,
    create_self_play,
    odds_fields,
    own_first,
    policies_in_self_play,
    published_numbers,
)
