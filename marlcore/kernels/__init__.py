"""Numba kernels: which tickets may be drawn, what their returns are, copying rows, trees of priorities.

They see arrays and numbers only, allocate nothing, and draw from a generator whose state the caller owns. Compiled code
is kept on disk; jit.py says how. This room never waits, and never calls Python.
"""
