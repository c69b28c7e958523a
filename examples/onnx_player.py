"""Plays a policy that marlcore exported, without marlcore and torch.

pip install onnxruntime numpy gymnasium && python examples/onnx_player.py cartpole.onnx [EPISODES]
"""

import sys

import gymnasium
import numpy as np
import onnxruntime


def main(file: str, episodes: int = 10) -> float:
    session = onnxruntime.InferenceSession(file)
    env = gymnasium.make("CartPole-v1")
    returns = [0.0] * episodes
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            action = session.run(["action"], {"obs": obs[None]})[0][0]  # of the first row
            obs, reward, terminated, truncated, _ = env.step(action)
            returns[seed] += float(reward)
            over = terminated or truncated
    print(f"{episodes} episodes, mean return {np.mean(returns):.1f}")
    return float(np.mean(returns))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
