"""The bases of algorithms: hyperparameters, choices of actions, and trainers. Each family has a file."""
