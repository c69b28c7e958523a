"""Films an episode of a run's policies, and writes it as GIF or MP4."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..envs import NamedEnvironment, vectorize
from ..training import EvaluatedRun, play

MODE = "rgb_array"
FRAMES_PER_S = 15.0  # of an environment that does not say
NEEDS = "video: MP4 needs imageio, try: pip install 'imageio[ffmpeg]'; or name a file .gif"

Frame = NDArray[np.uint8]  # [height, width, 3]


def check_format(path: str) -> None:
    """Raises: ValueError: the file is neither GIF nor MP4. ImportError: MP4 needs a package."""
    kind = Path(path).suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise ValueError(f"video: expected a file named .gif or .mp4, got {path!r}")
    if kind == ".mp4":
        try:
            import imageio.v2  # noqa: F401
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise ImportError(NEEDS) from None


def film(run: EvaluatedRun, seed: int) -> tuple[list[Frame], float]:
    """The frames of one greedy episode, and their number in a second. Raises ValueError: it is not rendered."""
    raw = _rendering(run.env_fn)
    camera = _Camera(raw)
    with closing(vectorize(lambda: raw, 1)) as env:
        play(env, {agent: run.player(agent, 1, seed) for agent in env.agents}, 1, seed, lambda: not camera.failed)
    if camera.failed is not None:
        raise camera.failed
    metadata = getattr(raw, "metadata", None) or {}
    return camera.frames, float(metadata.get("render_fps", FRAMES_PER_S))


def _rendering(env_fn: Callable[..., Any]) -> Any:
    """An environment made to render arrays. Raises ValueError: it cannot."""
    if isinstance(env_fn, NamedEnvironment):
        make: Callable[[], Any] = replace(env_fn, options={**env_fn.options, "render_mode": MODE})
    elif _takes_render_mode(env_fn):
        make = partial(env_fn, render_mode=MODE)
    else:
        raise ValueError(f"video: expected an environment function that takes render_mode, got {env_fn!r}")
    try:
        env = make()
    except Exception as error:  # an environment may raise anything
        raise _cannot(error) from None
    if not hasattr(env, "render"):
        env.close()
        raise ValueError(f"video: expected an environment that renders, got {type(env).__name__}")
    return env


def _takes_render_mode(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "render_mode" in parameters or any(named.kind is named.VAR_KEYWORD for named in parameters.values())


class _Camera:
    """Films the first episode of an environment that has steps.

    It wraps the environment's own methods, since adapters and vector environments hide the environment behind them.
    """

    def __init__(self, env: Any) -> None:
        self.frames: list[Frame] = []
        self.failed: ValueError | None = None
        self._render = env.render
        self._over = False
        env.reset = self._filmed(env.reset, self._begin)
        env.step = self._filmed(env.step, self._take)

    def _filmed(self, method: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            then()
            return result

        return call

    def _begin(self) -> None:
        if len(self.frames) > 1:
            self._over = True
        else:
            self.frames.clear()  # adapters may reset once before the episode
            self._take()

    def _take(self) -> None:
        if self._over or self.failed is not None:
            return
        try:
            frame = np.asarray(self._render(), np.uint8)
            if frame.ndim != 3 or frame.shape[2] != 3:
                raise ValueError(f"expected frames [height, width, 3], got shape {frame.shape}")
        except Exception as error:  # a renderer may raise anything
            self.failed = _cannot(error)
        else:
            self.frames.append(frame.copy())


def _cannot(error: Exception) -> ValueError:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return ValueError(f"video: expected an environment that renders with render_mode={MODE!r} ({reason})")


def write_video(path: str, frames: list[Frame], frames_per_s: float) -> None:
    """Writes frames as GIF or MP4, by the file's name."""
    if Path(path).suffix.lower() == ".mp4":
        import imageio.v2

        imageio.v2.mimwrite(path, [*frames], fps=frames_per_s, macro_block_size=2)  # players need even sizes
        return
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    milliseconds = round(1000 / frames_per_s)
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
