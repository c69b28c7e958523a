"""The compiled computations of planning. They take only arrays and numbers, and allocate nothing."""
