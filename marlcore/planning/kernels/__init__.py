"""The compiled sums of planning. They take only arrays and numbers, and allocate nothing."""
