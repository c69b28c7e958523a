"""sorrel's treasurehunt in processes: its agents, worlds and models unchanged, with `run_experiment_mp` as the loop.

    python -m bench install sorrel    # an environment with sorrel; says where
    PYTHONPATH=. THAT_ENVIRONMENT/bin/python examples/sorrel_treasurehunt.py --seed 0

`env.run_experiment()` would play and train in turn. Here an actor process plays, and a learner process for each model
trains; after n epochs each model has had as many updates as in sorrel's loop. docs/drop-ins.md has the options.
"""

from dataclasses import dataclass
from statistics import fmean

import tyro
from sorrel.examples.treasurehunt.entities import EmptyEntity
from sorrel.examples.treasurehunt.env import TreasurehuntEnv
from sorrel.examples.treasurehunt.world import TreasurehuntWorld
from sorrel.utils.logging import Logger

from marlcore.compat.sorrel import run_experiment_mp


@dataclass
class Args:
    seed: int = 0
    epochs: int = 300


def config(epochs: int) -> dict:
    return {
        "experiment": {"epochs": epochs - 1, "max_turns": 100, "record_period": epochs},
        "model": {"agent_vision_radius": 2, "epsilon_decay": 0.005, "num_agents": 2},
        "world": {"height": 11, "width": 11, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.01},
    }


def main(args: Args) -> list[tuple[int, float]]:
    settings, logger = config(args.epochs), Logger(args.epochs - 1)
    env = TreasurehuntEnv(TreasurehuntWorld(settings, EmptyEntity()), settings)
    done = run_experiment_mp(env, logger=logger, seed=args.seed)
    tenth = max(1, args.epochs // 10)
    first, last = fmean(logger.rewards[:tenth]), fmean(logger.rewards[-tenth:])
    print(f"{done.epochs} epochs, {done.steps} steps and {done.updates} updates in {done.seconds:.0f} s")
    print(f"score of an epoch: {first:.1f} in the first tenth, {last:.1f} in the last")
    return [((epoch + 1) * done.steps // done.epochs, score) for epoch, score in enumerate(logger.rewards)]


if __name__ == "__main__":
    main(tyro.cli(Args))
