"""Self-play: one policy learns against frozen copies of itself and anchors.

The learner admits copies of its policy to a pool, which is a store of many slots, keeps the payoff table, and publishes
the opponents' odds with its weights. Actors draw an opponent where an episode begins, and report who won.
"""
