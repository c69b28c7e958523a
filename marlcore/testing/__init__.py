"""Tools with which users test marlcore's promises and their own environments.

`check_env` plays an environment and reports violations of the interface. `python -m marlcore.testing.chaos` kills the
processes of a real run and checks every row. victim.py starts and kills runs; checked.py has an environment whose rows
prove their own integrity.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
