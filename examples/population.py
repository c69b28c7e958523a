"""Population-based training of PPO on CartPole: members with a bad learning rate copy those with a better one.

    python examples/population.py --size 16 --steps 6000

Each member is a run of its own under runs/. After every interval, members of the lowest quarter take weights and
optimizer of one of the highest quarter, and change the learning rate (Jaderberg et al. 2017, arXiv:1711.09846).
"""

from dataclasses import dataclass

import tyro

import marlcore as mc


@dataclass
class Args:
    seed: int = 0
    size: int = 16
    steps: int = 6_000
    interval: int = 1_500
    method: str = "pbt"
    run_dir: str | None = None


def main(args: Args) -> None:
    config = mc.Config(
        total_steps=args.steps,
        seed=args.seed,
        mode="serial",  # such short segments take less time than the start of a process
        run_dir=args.run_dir,
        actor=mc.ActorConfig(envs=2),
        learner=mc.LearnerConfig(device="cpu"),
    )
    population = mc.PopulationConfig(
        size=args.size,
        parallel=1,
        interval=args.interval,
        method=args.method,
        settings={"algorithm.learning_rate": mc.LogUniform(1e-6, 1e-2)},
    )
    ppo = mc.PPO(batch_size=128, minibatch_size=64, epochs=6)
    members = mc.train_population("gymnasium:CartPole-v1", ppo, config, population, progress=False)
    for member in members:
        rate = member.settings["algorithm.learning_rate"]
        print(f"member {member.number}: score {member.score:.1f}, learning rate {rate:.1e}")
    print(
        f"best: {mc.evaluate(members[0].run_dir, 5).mean['agent_0']:.1f} in 5 episodes; see {members[0].run_dir.parent}"
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
