"""marlcore behind the interfaces of other libraries: cpprb, EMPO, sorrel, Stable-Baselines3 and TorchRL.

Each imports its own library alone, and only if that library is needed. Common to them are the ring of rows (`ring`,
`ring_lane`), columns read in place (`column_views`), and saves.
"""
