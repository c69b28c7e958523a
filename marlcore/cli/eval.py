"""`marlcore eval`: plays episodes with a run's policies; prints their returns, and films one as GIF or MP4."""

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from ..checks import check_whole
from ..envs import JointObservations, NamedEnvironment, Teams, vectorize
from ..evaluation import EvaluatedRun, evaluate, wrapped
from ..loops import play
from ..tables import print_fitted
from .options import CommandLine

RENDER_MODE = "rgb_array"
FRAMES_PER_S = 15.0  # if the environment names no rate
NEEDS = "video: MP4 needs imageio, try: pip install 'imageio[ffmpeg]'; or name a file .gif"

Frame = NDArray[np.uint8]  # [height, width, 3]


@dataclass(frozen=True)
class EvalOptions:
    """Play whole episodes with a run's policies, greedily; print returns with confidence intervals.

    The run may still be training: the command reads its checkpoints. The command executes code that the run's directory
    holds; see docs/security.md.
    """

    run_dir: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """Directory of the run."""
    episodes: int = 100
    """Episodes to play."""
    which: str = "last"
    """The checkpoints: last; best, by the run's evaluations; or the step of kept checkpoints."""
    envs: int = 8
    """Environment copies that play together."""
    seed: int = 0
    """Seed of the episodes; the same seed gives the same episodes."""
    explore: bool = False
    """Explore as actors do with these weights."""
    policies: dict[str, str] = field(default_factory=dict)
    """Replacements of policies, by name of a policy or an agent: module:name of a function of an observation, or of a
    class or an object with a method act(obs); or the directory of another run."""
    env: str = ""
    """An environment to use instead of the run's, named as for marlcore train."""
    trust: bool = False
    """Execute the code of a run's directory that another user could have changed."""
    video: str = ""
    """A file, .gif or .mp4, for a film of one further episode."""


def main(arguments: list[str]) -> int:
    sys.path.append(os.getcwd())  # for modules of the run's environment and algorithms
    options = CommandLine("eval", arguments).parse(EvalOptions, positional="run_dir")
    env_fn = options.env or None
    run_dir, video = os.path.abspath(options.run_dir), os.path.abspath(options.video)  # an environment may call chdir
    policies = {name: os.path.abspath(it) if os.path.isdir(it) else it for name, it in options.policies.items()}
    if options.video:
        check_whole("episodes", options.episodes)
        check_whole("seed", options.seed, 0)
        check_format(options.video)
        run = EvaluatedRun(run_dir, options.which, policies, env_fn, trust=options.trust)
        write_video(video, *film(run, options.seed))
    chosen = {name: getattr(options, name) for name in ("episodes", "which", "envs", "seed", "explore", "trust")}
    with episodes_shown(options.episodes) as watch:
        outcome = evaluate(run_dir, policies=policies, env_fn=env_fn, watch=watch, **chosen)
    print_fitted(outcome.__rich__())
    if options.video:
        sys.stdout.write(f"video in {options.video}\n")
    return 0


@contextmanager
def episodes_shown(episodes: int) -> Iterator[Callable[[int], object]]:
    """Shows a bar of ended episodes on a terminal; it disappears at the end."""
    silent = sys.stderr is None or not sys.stderr.isatty()
    columns = "episodes", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=silent) as bar:
        task = bar.add_task("", total=episodes)

        def watch(ended: int) -> None:
            if ended != bar.tasks[task].completed:
                bar.update(task, completed=ended, refresh=True)

        yield watch


def check_format(path: str) -> None:
    """Raises ValueError unless the path is .gif or .mp4 in an existing directory; ImportError if MP4 cannot work."""
    kind = Path(path).suffix.lower()
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"video: expected a file in a directory that exists, got {path!r}")
    if kind not in (".gif", ".mp4"):
        raise ValueError(f"video: expected a file named .gif or .mp4, got {path!r}")
    if kind == ".mp4":
        try:
            import imageio.v2  # noqa: F401
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise ImportError(NEEDS) from None


def film(run: EvaluatedRun, seed: int) -> tuple[list[Frame], float]:
    """Returns a greedy episode's frames, and frames per second. Raises ValueError if the environment cannot render."""
    raw = _rendering(run.env_fn)
    camera = _Camera(raw)
    with closing(vectorize(wrapped(run.env_fn, lambda: raw), 1)) as env:
        play(env, {agent: run.player(agent, 1, seed) for agent in env.agents}, 1, seed, lambda: not camera.failed)
    if camera.failed is not None:
        raise camera.failed
    metadata = getattr(raw, "metadata", None) or {}
    return camera.frames, float(metadata.get("render_fps") or FRAMES_PER_S)


def _rendering(env_fn: Callable[..., Any]) -> Any:
    """Makes an environment that renders arrays. Raises ValueError if the environment cannot render."""
    while isinstance(env_fn, JointObservations | Teams):
        env_fn = env_fn.env_fn
    if isinstance(env_fn, NamedEnvironment):
        make: Callable[[], Any] = replace(env_fn, options={**env_fn.options, "render_mode": RENDER_MODE})
    elif _takes_render_mode(env_fn):
        make = partial(env_fn, render_mode=RENDER_MODE)
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
    """Films an environment's first episode. It wraps the environment's methods, since adapters hide the environment."""

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
    return ValueError(f"video: expected an environment that renders with render_mode={RENDER_MODE!r} ({reason})")


def write_video(path: str, frames: list[Frame], frames_per_s: float) -> None:
    if Path(path).suffix.lower() == ".mp4":
        import imageio.v2

        imageio.v2.mimwrite(path, [*frames], fps=frames_per_s, macro_block_size=2)  # players need even sizes
        return
    from PIL import Image

    every = math.ceil(frames_per_s / 50)  # players show what lasts less than 0.02 s for longer
    images = [Image.fromarray(frame) for frame in frames[(len(frames) - 1) % every :: every]]  # with the last one
    ends = [round(100 * every * number / frames_per_s) for number in range(len(images) + 1)]  # in 0.01 s, a GIF's unit
    durations = [10 * (end - begin) for begin, end in pairwise(ends)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)
