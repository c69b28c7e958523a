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
# Rows over Ray, with pip install "marlcore[cluster]"
from .ray_rows import IngestActor as IngestActor
from .ray_rows import RayLink as RayLink
from .ray_rows import start_ingest as start_ingest
