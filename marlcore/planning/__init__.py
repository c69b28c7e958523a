"""Tabular planning over finite world models: state-space graphs in shared memory.

`build_graph` enumerates the states of a world model on several processes; the result is the same for any number of
processes. `backward_induction` computes values and policies of agents with goals, `robot_induction` the policy of
robots that help these agents. Nothing here uses replays, networks or training. Each name imports its module on first
use, because graphs and their workers need no Numba.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
