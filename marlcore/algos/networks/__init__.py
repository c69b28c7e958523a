"""The parts of networks, as plain modules of torch: encoders, torsos, heads, critics, distributions, action spaces.

Each module's `forward` shows its computation; stand_in.py computes the same without calling modules.
"""
