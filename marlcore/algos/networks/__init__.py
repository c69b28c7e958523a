"""The parts of networks, as plain modules of torch: encoders, torsos, heads, critics, distributions, action spaces.

Each module's `forward` shows what it computes. The room `fast` has the faster ways to compute it.
"""
