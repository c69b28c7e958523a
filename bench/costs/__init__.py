"""What a call, a run and an hour cost, and how that grows with their size."""
