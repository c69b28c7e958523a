"""Benchmarks: marlcore beside the lock-based way of doing the same and beside a memcpy of the same bytes."""
