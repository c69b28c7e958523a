"""marlcore behind the interfaces of cpprb, EMPO, LeRobot, sorrel, Stable-Baselines3, Tianshou and TorchRL.

Of these libraries, a module imports only its own. The modules share the ring of rows (`ring`, `ring_lane`,
`compressed_ring`) and replays whose columns are read in place (`replays`, `lane_arrays`).
"""
