"""An episode is filmed whole, or one line says why it cannot be."""

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crowd import Corridor
from PIL import Image
from refused import Refused, refusals

from marlcore.cli import eval
from marlcore.loops import ScriptedPlayer
from marlcore.spaces import Spaces


class Filmed(Corridor):
    """Its picture shows how many steps were taken."""

    def __init__(self, render_mode: str | None = None, shows: Callable[[int], Any] | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self._shows = shows or (lambda at: np.full((5, 7, 3), 10 * at, np.uint8))

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return self._shows(self.place)


def run_of(env_fn: Callable[[], Any]) -> Any:
    spaces = Spaces(Filmed.observation_space, Filmed.action_space)
    player = ScriptedPlayer("still", lambda obs: 0, spaces, 1)
    return SimpleNamespace(env_fn=env_fn, player=lambda agent, copies, seed: player)


def test_an_episode_is_filmed_from_its_first_to_its_last_picture(tmp_path):
    frames, frames_per_s = eval.film(run_of(Filmed), seed=0)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 10, 20, 30, 40, 50] and frames_per_s == 15
    eval.write_video(str(tmp_path / "a.gif"), frames, 20.0)
    with Image.open(tmp_path / "a.gif") as video:
        assert video.n_frames == 6 and video.size == (7, 5) and video.info["duration"] == 50


def raises(at: int) -> Any:
    raise RuntimeError("no display\nat all")


def filmed(env_fn: Callable[..., Any]) -> Callable[[], object]:
    return lambda: eval.film(run_of(env_fn), seed=0)


REFUSED: dict[str, Refused] = {
    "no render_mode": (filmed(lambda: Filmed()), "video: expected an environment function that takes render_mode, got"),
    "no picture": (filmed(partial(Filmed, shows=lambda at: None)), "video: expected an environment that renders with"),
    "shape": (filmed(partial(Filmed, shows=lambda at: np.zeros((5, 7)))), "(ValueError: expected frames [height, wid"),
    "error": (filmed(partial(Filmed, shows=raises)), "(RuntimeError: no display)"),
    "start": (filmed(lambda **options: Filmed(**options, colour=1)), "(TypeError: "),
}
test_an_environment_that_does_not_render_is_named = refusals(REFUSED)


def test_a_format_that_cannot_be_written_is_refused(monkeypatch):
    eval.check_format("a.GIF")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r"^video: MP4 needs imageio, try: pip install 'imageio\[ffmpeg\]'"):
        eval.check_format("a.mp4")
