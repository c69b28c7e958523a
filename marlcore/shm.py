"""The directory of this machine's shared memory."""

import os
from pathlib import Path

# Cluster nodes that share one machine set MARLCORE_SHM_DIR, each to a directory of its own.
SHM_DIR = Path(os.environ.get("MARLCORE_SHM_DIR") or "/dev/shm")
