"""Rows and weights between machines.

A relay sends the rows of a node's replay or queue to the ingest beside a learner's, where each arrives once. Only
`ray_rows.py` and `ray_weights.py` import Ray, when they are used. The room knows nothing of runs or algorithms.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
