"""Atari games with the usual preprocessing."""

from __future__ import annotations

from typing import Any

from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import AtariPreprocessing

from .gymnasium import make_gymnasium, not_installed


def make_atari(game: str, /, **options: Any) -> Any:
    """The game with observations uint8 [84, 84] and the sticky actions of Machado et al. 2018 (arXiv:1709.06009).

    Each action is repeated for 4 frames, of which the last two are merged; in each frame the game repeats the previous
    frame's action with probability 0.25. As in Mnih et al. 2015, an episode begins with up to 30 frames without an
    action; it ends with the game, not with a life. Rewards are the game's points. Replays and queues stack four
    frames of an environment by name, unless `replay.stack` says otherwise.

    Args:
        game: such as Pong, for the environment ALE/Pong-v5 of ale-py.
        options: of `gymnasium.make`, such as repeat_action_probability, mode, difficulty, full_action_space.

    Raises:
        ValueError: no such game exists. ImportError: ale-py or opencv-python is not installed.
    """
    env = make_gymnasium(f"ALE/{game}-v5", **{"frameskip": 1, **options})
    try:
        return AtariPreprocessing(
            env, noop_max=30, frame_skip=4, screen_size=84, terminal_on_life_loss=False, scale_obs=False
        )
    except DependencyNotInstalled as error:
        env.close()
        raise not_installed(f"atari:{game}", str(error)) from None
