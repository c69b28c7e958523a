"""Tools with which users can test marlcore's promises themselves: `python -m marlcore.testing.chaos --help`."""
