"""Windows of random episodes in a replay, for tests of recurrent learners."""

from typing import Any

import numpy as np
from updates import made_action, made_obs

import marlcore as mc
from marlcore.interfaces import Algorithm, ReplaySource
from marlcore.spaces import Spaces

GAMMA = 0.9


def made_windows(hyper: Algorithm, spaces: Spaces, rows: int = 24, seed: int = 0, **options: Any) -> mc.Batch:
    """Windows as a learner draws them: episodes that terminate, are truncated, or stop at a seam; random states."""
    rng = np.random.default_rng(seed)
    spec, source = hyper.transition(spaces), hyper.source(ReplaySource())
    with mc.ReplayBuffer.create(spec, 4_000, lanes=1) as replay:
        with replay.writer() as writer:
            for _ in range(25):
                _write_episode(writer, spec, spaces, rng)
        return replay.sampler(
            rows, sequence=source.sequence, stack=spaces.stack, gamma=GAMMA, seed=seed, min_size=1, **options
        ).sample()


def _write_episode(writer: Any, spec: mc.TransitionSpec, spaces: Spaces, rng: np.random.Generator) -> None:
    unstacked = Spaces(spaces.observation, spaces.action, spaces.masked)
    length, end = int(rng.integers(1, 40)), rng.choice(["terminated", "truncated", "seam"])
    for step in range(length):
        last = step == length - 1
        obs, final = _first(made_obs(unstacked, 1, rng)), _first(made_obs(unstacked, 1, rng))
        over = {end: True} if last and end != "seam" else {}
        extras = {name: rng.normal(size=field.shape).astype(field.dtype) for name, field in spec.extras.items()}
        action = made_action(unstacked, 1, rng)[0].numpy()
        writer.add(obs, action, rng.normal(scale=3), final_obs=final if "truncated" in over else None, **over, **extras)
    if end == "seam":
        writer.new_episode()


def _first(obs: Any) -> Any:
    return {name: part[0].numpy() for name, part in obs.items()} if isinstance(obs, dict) else obs[0].numpy()
