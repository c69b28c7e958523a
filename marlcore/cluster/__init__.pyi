# Rows
from .bookings import Booking as Booking
from .bookings import Bookings as Bookings
from .ingest import Ingest as Ingest
from .ingest import IngestStats as IngestStats
from .relay import DirectLink as DirectLink
from .relay import Link as Link
from .relay import Relay as Relay
from .relay import RelayStats as RelayStats

# isort: split
# Weights
from .mirror import Mirror as Mirror
from .mirror import Porter as Porter

# isort: split
# Leases
from .leases import Leases as Leases

# isort: split
# On Ray, with pip install "marlcore[cluster]"
from .ray_actors import IngestActor as IngestActor
from .ray_actors import PorterActor as PorterActor
from .ray_actors import RayLink as RayLink
from .ray_actors import WeightsLink as WeightsLink
from .ray_actors import end_actor as end_actor
from .ray_actors import start_ingest as start_ingest
