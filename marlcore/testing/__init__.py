"""Tools with which users can test marlcore's promises themselves.

`python -m marlcore.testing.chaos` kills the processes of a real run and checks every row. victim.py starts and kills
programs; checked.py has an environment whose rows prove their own integrity.
"""
