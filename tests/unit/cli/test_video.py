"""An episode is filmed whole, or one line says why it cannot be."""

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crowd import Corridor, Relay
from PIL import Image
from refused import Refused, refusals

from marlcore.cli import eval
from marlcore.envs import JointObservations, Teams
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


class FilmedTeam(Relay):
    """A Parallel environment, whose picture shows the round."""

    def __init__(self, render_mode: str) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((5, 7, 3), self.seen[0], np.uint8)


def test_an_episode_of_a_team_with_joint_observations_is_filmed():
    env_fn = JointObservations(Teams(FilmedTeam, {"team": ("a", "b")}), ("team",))
    spaces = env_fn.around(Teams(FilmedTeam, {"team": ("a", "b")}).around(FilmedTeam("rgb_array")))
    of = {agent: Spaces(spaces.observation_space(agent), spaces.action_space(agent)) for agent in ("team", "c")}
    still = {
        agent: ScriptedPlayer("still", lambda obs, it=it: it.action.sample() * 0, it, 1) for agent, it in of.items()
    }
    run = SimpleNamespace(env_fn=env_fn, player=lambda agent, copies, seed: still[agent])
    assert [int(frame[0, 0, 0]) for frame in eval.film(run, seed=0)[0]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("frames_per_s", [30, 67, 125, 500])
def test_a_gif_lasts_as_long_as_what_it_shows(tmp_path, frames_per_s):
    """No picture is shorter than players show one."""
    frames = [np.full((2, 2, 3), 4 * number, np.uint8) for number in range(60)]
    eval.write_video(str(tmp_path / "a.gif"), frames, frames_per_s)
    with Image.open(tmp_path / "a.gif") as video:
        shown = []
        for number in range(video.n_frames):
            video.seek(number)
            shown.append(video.info["duration"])
        assert abs(np.asarray(video.convert("L"))[0, 0] - 4 * 59.0) < 3, "the last picture"
    assert min(shown) >= 20 and abs(sum(shown) / 1000 - 60 / frames_per_s) < 2 * max(shown) / 1000


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
