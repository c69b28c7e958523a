"""Other ways of doing what marlcore does, to measure it against."""
