"""marlcore behind the interfaces of other libraries: cpprb, EMPO, sorrel, Stable-Baselines3 and TorchRL.

Each module imports at most its own library. The modules share the ring of rows (`ring`, `ring_lane`) and replays whose
columns are read in place (`replays`).
"""
