"""Numba kernels: they draw rows, compute returns, maintain trees of priorities, and plan backwards.

Kernels take only arrays and numbers, allocate nothing, and draw from a generator whose state the caller owns. They
never wait and never call Python. jit.py caches the compiled code on disk.
"""
