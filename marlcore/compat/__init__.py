"""marlcore behind the interfaces of other libraries: cpprb, EMPO, sorrel, Stable-Baselines3 and TorchRL.

A module imports none of these libraries but its own. The modules share the ring of rows (`ring`, `ring_lane`) and
replays whose columns are read in place (`replays`).
"""
