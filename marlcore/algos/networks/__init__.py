"""The parts of networks, as plain modules of torch: encoders, torsos, heads, critics, distributions, action spaces.

Each module's `forward` shows what it computes; stand_in.py computes the same without the calls of modules.
"""
