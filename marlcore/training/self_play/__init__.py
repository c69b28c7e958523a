"""Self-play: a policy learns against frozen copies of itself and scripted anchors; a payoff table; fair evaluations.

It fills columns of the actor's seats, adds numbers to the learner's publications, and has games of its own for the
evaluator. The other rooms do not know it.
"""

from .payoff import FILE
from .picture import draw_payoff
from .start import check_self_play, create_self_play, odds_fields, policies_in_self_play, published_numbers
