"""marlcore behind the interfaces of other libraries: cpprb, EMPO, sorrel, Stable-Baselines3 and TorchRL.

Each imports its own library alone, and only if that library is needed. The other files are their helpers: rings of
rows in lanes, steps with their successors, sums of priorities, files in the libraries' own formats.
"""
