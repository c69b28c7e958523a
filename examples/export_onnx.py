"""Trains a policy of CartPole and exports it to ONNX, for programs that have no marlcore and no torch.

    pip install "marlcore[onnx]" && python examples/export_onnx.py [STEPS] [FILE]
    python examples/onnx_player.py cartpole.onnx

The second line plays it with ONNX Runtime, NumPy and Gymnasium alone. The file holds the normalization of observations
too, if the run had one. docs/guides/export.md describes inputs and outputs.
"""

import sys
from pathlib import Path

import marlcore as mc


def main(steps: int = 20_000, file: str = "cartpole.onnx") -> str:
    config = mc.Config(total_steps=steps, seed=0, mode="serial", learner=mc.LearnerConfig(device="cpu"))
    result = mc.train("gymnasium:CartPole-v1", mc.PPO(), config, progress=False)
    inputs = mc.load_policy(result.run_dir, "agent_0").export(file)
    shapes = {name: (array.dtype.name, array.shape) for name, array in inputs.items()}
    print(f"{file}: {Path(file).stat().st_size // 1024} KB, inputs {shapes}")
    return file


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
