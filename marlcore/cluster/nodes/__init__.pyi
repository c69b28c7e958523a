# In a run's driver
from .controller import Controller as Controller
from .learners import try_learner as try_learner
from .ray_cluster import RayCluster as RayCluster
from .uplink import Uplink as Uplink
