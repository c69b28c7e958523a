"""A run's actors and learners on other machines: their parts of a run, and its control from here.

On a node with actors, an agent owns shared memory as a run on one machine has it, a program that supervises the actors,
relays that send their rows to the learners, and mirrors of the weights. On a node with a policy's learner, an agent
owns the policy's transitions and weights, their ingest and porter, and a program that supervises the learner. The
controller, in the driver, has a post for each agent. `fleet.py` alone imports Ray; rows and weights pass by
`marlcore.cluster`.
"""

from .controller import Controller
from .fleet import Fleet
from .learner_node import try_learner
from .traffic import Traffic
