"""Base classes of algorithms: hyperparameters, choice of actions, and trainers; one file for each family."""
