"""What algorithms share: their hyperparameters, choices of actions, and trainers. One file a family."""
