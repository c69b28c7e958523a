"""The directory of this machine's shared memory."""

import os
from pathlib import Path

# Where several nodes of a cluster are one machine, each has a directory of its own in MARLCORE_SHM_DIR.
SHM_DIR = Path(os.environ.get("MARLCORE_SHM_DIR") or "/dev/shm")
