"""Three agents cover three landmarks: `python examples/spread.py`, by all team algorithms and two others.

`pip install "marlcore[envs]"`. The agents of simple_spread (Lowe et al. 2017, arXiv:1706.02275) earn more the nearer
they are to all landmarks together, and less where they collide. Members of a team act by what each sees; agents
of MAPPO and PPO act on their own, and share a policy. The settings are the presets'. spread.png shows the greedy
evaluations of all.
"""

import argparse
import time
from dataclasses import replace

import matplotlib.pyplot as plt

import marlcore as mc
from marlcore.record import read_metrics

ALGORITHMS, AGENTS = ("vdn", "qmix", "matd3", "maddpg", "happo", "coma", "mappo", "ppo"), 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--steps", type=int, default=40_000, help="of the environment: in each, all three agents act")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.algorithms:
        env, algorithm, config = mc.preset(f"simple-spread-{name}")
        steps = options.steps * (AGENTS if config.policies else 1)  # a team's step is one of the environment
        evaluation = mc.EvaluationConfig(interval=steps // 5, wait=True)
        config = replace(config, total_steps=steps, seed=options.seed, evaluation=evaluation)
        began = time.monotonic()
        result = mc.train(env, algorithm, config, progress=False)
        seconds = time.monotonic() - began
        returns = mc.evaluate(result.run_dir, episodes=100).mean
        print(f"{name:6} {sum(returns.values()) / AGENTS:.1f} by agent in {seconds:.0f} s", flush=True)
        found = [metric for metric in read_metrics(result.run_dir / "metrics.csv") if metric.name == "eval_return"]
        curve: dict[float, float] = {}  # the sum over teams or agents, by step
        for metric in found:
            step = metric.step * options.steps / steps
            curve[step] = curve.get(step, 0.0) + metric.value / AGENTS
        plt.plot(list(curve), list(curve.values()), label=name)
    plt.gca().set(xlabel="steps of the environment", ylabel="return of an agent, greedily")
    plt.legend()
    plt.savefig("spread.png", dpi=120)


if __name__ == "__main__":
    main()
