"""The parts of networks, as plain modules of torch: encoders, torsos, heads, critics, distributions, action spaces.

Each module's `forward` is the text of what it computes. How it is computed faster stands in the room `fast`.
"""
