"""A run's actors on other machines: their part of a run, and its control from here.

On each node, an agent owns shared memory as a run on one machine has it, a program that supervises the actors, relays
that send their rows to the learners, and mirrors of the weights. The controller, in the driver, gives the agents their
seats and their shares of the steps. `fleet.py` alone imports Ray; rows and weights pass by `marlcore.cluster`.
"""

from .controller import Controller
from .fleet import Fleet
