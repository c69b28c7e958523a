"""One run of OpenSpiel's PSRO on Leduc poker; a program for OpenSpiel's environment: ORACLE SEED TERMS (JSON).

ORACLE is "dqn", OpenSpiel's DQN in PyTorch, or "exact", its best responses. Each player has a population. It prints a
line of JSON with the row of `python -m bench psro`, where the steps of a response are the mean.
"""

import json
import os
import random
import sys
from functools import partial
from typing import Any

import numpy as np
import pyspiel
import torch
from open_spiel.python.algorithms.psro_v2 import best_response_oracle, psro_v2, rl_oracle, rl_policy
from open_spiel.python.policy import TabularPolicy
from open_spiel.python.pytorch.dqn import DQN
from open_spiel.python.rl_environment import Environment

import marlcore as mc

STEPS_OF_EPISODE = 2.3  # of one player, about


def main(oracle: str, seed: int, iterations: int, steps: int, games: int, **settings: Any) -> None:
    torch.set_num_threads(1)
    np.random.seed(seed)
    random.seed(seed)  # which chooses opponents
    game, kind = pyspiel.load_game("leduc_poker"), rl_policy.rl_policy_factory(DQN)
    settings |= {"state_representation_size": game.information_state_tensor_size(), "num_actions": 3, "seed": seed}
    env, first = Environment(game, seed=seed), [TabularPolicy(game), TabularPolicy(game)]
    responder: Any = best_response_oracle.BestResponseOracle(game=game, policy=TabularPolicy(game))
    if oracle == "dqn":
        responder = rl_oracle.RLOracle(env, kind, settings, number_training_episodes=steps / STEPS_OF_EPISODE)
        first = [kind(env, player, **settings) for player in range(2)]
        rl_oracle.freeze_all([first])
    used = sum(os.times()[:4])
    options = {"training_strategy_selector": "probabilistic", "sample_from_marginals": True}
    solver = psro_v2.PSROSolver(game, responder, games, first, meta_strategy_method="nash", **options)
    for _ in range(iterations):
        solver.iteration()
    cpu = round(sum(os.times()[:4]) - used)
    players = solver.get_policies()
    exact = partial(mc.exploitability, game.new_initial_state())
    strategies = [[policy.action_probabilities for policy in own] for own in players]
    mixture = exact(strategies, solver.get_meta_strategies())
    found = (round(value, 2) for value in (mixture, exact(strategies), exact([own[:1] for own in strategies])))
    rows = [int(policy._policy.replay_buffer.entry_index) for own in players for policy in own[1:] if oracle == "dqn"]
    print(json.dumps({"row": [*found, round(sum(rows) / max(len(rows), 1)), cpu]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), **json.loads(sys.argv[3]))
