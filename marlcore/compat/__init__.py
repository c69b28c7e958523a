"""marlcore behind the interfaces of other libraries: cpprb.py, sorrel.py, stable_baselines3.py and torchrl.py.

Each imports its own library alone, and only if that library is needed. The other files are their helpers: rings of
rows in lanes, steps with their successors, sums of priorities, files in the libraries' own formats.
"""
