"""Ways to see for yourself what marlcore promises; see `python -m marlcore.testing.chaos --help`."""
