"""Self-play of puck, a small table hockey: frozen copies of the policy and two scripts are its opponents.

    python examples/puck_self_play.py [STEPS]

The game is puck.py beside this file. Afterwards the last policy plays 100 games against the first of its pool, which is
untrained, and against each script, half of the games from each side. `payoff.png` of the run shows all opponents.
"""

import sys
from typing import Any

from puck import chaser, idle, two_player_puck

import marlcore as mc


def wins(run_dir: str, opponent: Any, games: int = 100) -> int:
    """Games that the last policy wins."""
    won = 0
    for side, other in (("player_1", "player_2"), ("player_2", "player_1")):
        outcome = mc.evaluate(run_dir, games // 2, policies={other: opponent})
        won += int((outcome.returns[side] > 0.5).sum())  # a win pays 1, and standing well a little
    return won


def main(steps: int = 40_000) -> mc.Result:
    config = mc.Config(
        total_steps=steps,
        updates_per_step=0.25,
        actor=mc.ActorConfig(envs=8, sync_interval=10),
        learner=mc.LearnerConfig(warmup=1_000, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=f"linear(1, 0.05, {0.4 * steps:.0f})"),
        self_play=mc.SelfPlayConfig(pool=8, admit_updates=1_000, anchors={idle: 0.1, chaser: 0.1}),
    )
    result = mc.train(two_player_puck, mc.DQN(learning_rate=1e-3, reward_scale=1.0), config, progress=False)
    first = mc.load_policy(result.run_dir, "main", "opponent-1")
    for name, opponent in (("its untrained self", first), ("idle", idle), ("chaser", chaser)):
        print(f"against {name}: {wins(result.run_dir, opponent)} of 100 games won")
    return result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
