"""Numba kernels: they draw rows, compute returns, and maintain trees of priorities.

Kernels take only arrays and numbers, allocate nothing, and draw from a generator whose state the caller owns. They
never wait and never call Python. jit.py compiles them, and cache.py finds the directory for the compiled code.
"""
