"""Atari Pong from pixels: DQN with stacks of four frames, each stored once, and prioritized replay.

    pip install "marlcore[atari]" && python examples/atari_pong.py [STEPS]

`ALE/Pong-v5` gets the usual preprocessing: 84 x 84 grey pixels, four frames an action, sticky actions. Ctrl-C ends a
run and keeps it; `marlcore train --resume RUN` continues.
"""

import sys

import marlcore as mc


def main(steps: int = 500_000) -> mc.Result:
    config = mc.Config(
        total_steps=steps,
        updates_per_step=0.1,
        actor=mc.ActorConfig(envs=8),
        replay=mc.ReplayConfig(capacity=150_000, stack=4, prioritized=True),
        learner=mc.LearnerConfig(batch_size=32, warmup=min(5_000, steps // 4)),
        exploration=mc.ExplorationConfig(epsilon=f"linear(1, 0.01, {min(60_000, steps)})"),
    )
    algorithm = mc.DQN(learning_rate=2e-4, hidden=(256,), reward_scale=1.0)
    result = mc.train("atari:Pong", algorithm, config)
    print(f"{result.steps} steps, {result.updates['agent_0']} updates, return {result.returns['agent_0']:.1f}")
    return result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
