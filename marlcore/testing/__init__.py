"""Shipped to users: ways to see for yourself that marlcore keeps its promises.

`python -m marlcore.testing.chaos` kills the processes of a real run and checks every row that comes out; victim.py
starts and kills programs, checked.py makes an environment whose rows say whether they are whole.
"""
