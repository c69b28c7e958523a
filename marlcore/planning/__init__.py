"""Tabular planning over finite world models: state-space graphs in shared memory.

`build_graph` enumerates the states of a world model on several processes; the result is the same for any number of
them. `backward_induction` computes values and policies of agents with goals, `robot_induction` the policy of robots
among them. The room knows nothing of replays, networks or training, and it never returns a graph that lacks a state.
Each name imports its module on first use, because graphs and their workers need no Numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import imported_on_use

if TYPE_CHECKING:
    from .building import build_graph as build_graph
    from .graph import Graph as Graph
    from .induction import backward_induction as backward_induction
    from .model import WorldModel as WorldModel
    from .policies import AgentPolicies as AgentPolicies
    from .policies import Policies as Policies
    from .robots import RobotPolicy as RobotPolicy
    from .robots import robot_induction as robot_induction
    from .warmup import warm_up as warm_up

_HOME = {
    "AgentPolicies": "policies",
    "Graph": "graph",
    "Policies": "policies",
    "RobotPolicy": "robots",
    "WorldModel": "model",
    "backward_induction": "induction",
    "build_graph": "building",
    "robot_induction": "robots",
    "warm_up": "warmup",
}

__all__ = sorted(_HOME)

__getattr__ = imported_on_use(__name__, _HOME)
