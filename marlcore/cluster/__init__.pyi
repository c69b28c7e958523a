# Weights
from .mirror import Mirror as Mirror
from .porter import Porter as Porter

# isort: split
# Leases
from .leases import Leases as Leases

# isort: split
# On Ray, with pip install "marlcore[cluster]"
from .ray_weights import PorterActor as PorterActor
from .ray_weights import WeightsLink as WeightsLink
