"""The page of the zoo, docs/zoo.md, and its picture, from stored figures."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from matplotlib.ticker import EngFormatter

import marlcore as mc
from marlcore.config import preset_names

from .. import ROOT
from ..figures import markdown, picture
from ..pages.pages import filled

DOCS = ROOT / "docs"
PANELS = 5  # in a row of the picture
RL_ZOO = {  # one run each, in thousands of steps; HalfCheetah and Hopper are -v3 there, LunarLander is -v2
    "acrobot-ppo": (-73.5, 1000), "bipedalwalker-ppo": (213.3, 5000), "breakout-dqn": (358.3, 10_000),
    "cartpole-dqn": (500, 50), "cartpole-ppo": (500, 100), "halfcheetah-sac": (9535, 1000),
    "hopper-ppo": (2410.4, 1000), "lunarlander-dqn": (154.4, 100), "lunarlander-ppo": (242.1, 1000),
    "mountaincar-ppo": (-110.4, 1000), "pendulum-sac": (-157.0, 20), "pendulum-td3": (-151.9, 20),
    "pong-dqn": (20.6, 10_000),
}  # fmt: skip
TEAM_TASKS = ("simple-spread", "simple-reference", "simple-tag")
TEAM_STEPS = 100_000  # of the environment, by all of their presets
OF_BENCHMARL = {"vdn": "vdn", "qmix": "qmix", "maddpg": "maddpg", "mappo": "mappo", "ippo": "ppo"}  # by its names
EPYMARL = {  # Papoudakis et al. 2021, table 3: the return, and millions of steps of the environment (section 4.1)
    "foraging-mappo": (1.0, 20), "foraging-ppo": (1.0, 20), "foraging-qmix": (0.96, 2), "foraging-vdn": (1.0, 2),
}  # fmt: skip
MEMBERS = 2  # of the team, in each of these tasks
COLUMNS = (
    "preset", "environment", "algorithm", "steps", "seeds", "random", "last", "best", "threshold", "solved", "RL Zoo",
    "seconds", "CPU seconds",
)  # fmt: skip


def interquartile_mean(scores: Sequence[float]) -> tuple[float, float, float]:
    """The mean without the lowest and the highest quarter, and its interval of 95 % by the percentile bootstrap."""
    from scipy.stats import bootstrap, trim_mean  # here: its import takes a second, and pytest imports this file

    mean = partial(trim_mean, proportiontocut=0.25)
    if len(scores) < 3:
        return float(mean(scores)), math.nan, math.nan
    drawn = bootstrap((scores,), mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0))
    return float(mean(scores)), *map(float, drawn.confidence_interval)


def with_interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.4g}" + ("" if math.isnan(low) else f" [{low:.4g}, {high:.4g}]")


def interval_of(runs: Collection[Mapping[str, Any]]) -> str:
    """The interquartile mean of the runs' last returns, with its interval; empty without runs."""
    return with_interval(*interquartile_mean([run["last"] for run in runs])) if runs else ""


def write(figures: Mapping[str, Any], sweeps: Mapping[str, Any], benchmarl: Mapping[str, Any]) -> None:
    """Writes the parts of the page that come from figures, between its marks, and the pictures."""
    table = markdown(COLUMNS, (row_of(name, figures.get(name)) for name in preset_names()))
    image = "![Return over the steps of each preset's runs: means, and lowest to highest](zoo/curves.png)"
    text = "\n".join([table, conditions(figures), "", image, ""])
    page = DOCS / "zoo.md"
    renderers = {"zoo": lambda _: text, "sweep": lambda _: table_of_sweeps(sweeps)}
    renderers["benchmarl"] = lambda _: beside_benchmarl(figures, benchmarl)
    renderers["epymarl"] = lambda _: beside_epymarl(figures)
    page.write_text(filled(page.read_text(), renderers))
    draw({name: figures[name] for name in preset_names() if name in figures}, DOCS / "zoo" / "curves.png")


def conditions(figures: Mapping[str, Any]) -> str:
    loads = [run["load"] for record in figures.values() for run in record["runs"].values()]
    presets: dict[str, list[str]] = {}  # by the machines of their runs
    for preset, record in sorted(figures.items()):
        presets.setdefault("; and ".join(sorted({run["on"] for run in record["runs"].values()})), []).append(preset)
    most = max(presets, key=lambda machine: len(presets[machine]))
    lines = [f"{'Others' if machine == most else ', '.join(of)}: {machine}." for machine, of in presets.items()]
    return "\n".join([*sorted(lines), f"The load was {min(loads):g} to {max(loads):g}."])


def row_of(preset: str, record: Mapping[str, Any] | None) -> list[str]:
    env, algorithm, config = mc.preset(preset)
    reference = RL_ZOO.get(preset)
    beside = "" if reference is None else f"{reference[0]:g} ({reference[1]:,}k)"
    threshold = threshold_of(env)
    names = [preset, env.rpartition(":")[2], type(algorithm).__name__, f"{config.total_steps:,}"]
    required = "" if threshold is None else f"{threshold:g}"
    if record is None:
        return [*names, "", "", "not run", "", required, "", beside, "", ""]
    runs = list(record["runs"].values())
    last = [run["last"] for run in runs]
    mean, low, high = interquartile_mean(last)
    best = [run["best"] for run in runs if "best" in run]
    reached = sum(score >= threshold for score in last) if threshold is not None else 0
    solved = "" if threshold is None else f"{'yes' if mean >= threshold else 'no'}, {reached} of {len(last)}"
    taken = [[run.get(name, math.nan) for run in runs] for name in ("seconds", "cpu")]
    costs = ["" if math.isnan(sum(each)) else f"{median(each):.0f}" for each in taken]
    chance = f"{record['random']:.4g}" if "random" in record else "0.5"
    scores = [chance, with_interval(mean, low, high), f"{interquartile_mean(best)[0]:.4g}" if best else ""]
    return [*names, str(len(runs)), *scores, required, solved, beside, *costs]


def table_of_sweeps(sweeps: Mapping[str, Any]) -> str:
    """A row for an algorithm's defaults, one for the best of the drawn settings, and those that were tried besides."""
    rows = []
    for algorithm, record in sweeps.items():
        for settings, scores in record["seeds"].items():
            if len(scores) < len(record["members"]):  # it was interrupted
                continue
            named = ", ".join(f"{name.partition('.')[2]}={value}" for name, value in json.loads(settings).items())
            mean = np.mean([np.minimum(of, 1.0).mean() for of in scores.values()])
            each = [f"{env.rpartition(':')[2]} {np.mean(of):.2f}" for env, of in scores.items()]
            rows.append([algorithm, named or "defaults", f"{mean:.2f}", "; ".join(each)])
    machines = ", ".join(sorted({record["machine"] for record in sweeps.values()}))
    return markdown(("algorithm", "settings", "score", "by task"), rows) + f"\n{machines}.\n"


def beside_benchmarl(figures: Mapping[str, Any], benchmarl: Mapping[str, Any]) -> str:
    """A row a task and algorithm: BenchMARL's returns by its learning rate, beside those of the preset."""
    found: dict[str, dict[str, list[Any]]] = {}  # runs by rate, by task and algorithm
    for name, runs in benchmarl["runs"].items():
        of, _, rate = name.rpartition(" ")
        found.setdefault(of, {})[rate] = [*runs.values()]
    rates = sorted({rate for by_rate in found.values() for rate in by_rate}, key=float)
    rows = []
    for of, by_rate in sorted(found.items()):
        task, algorithm = of.split()
        preset = f"{task}-{OF_BENCHMARL[algorithm]}"
        ours = [*figures[preset]["runs"].values()]
        returns = [interval_of(by_rate.get(rate, [])) for rate in rates]
        cpu = [run["cpu"] for runs in by_rate.values() for run in runs if ours[0]["on"].startswith(run["on"])]
        costs = [median(each) if each else math.nan for each in (cpu, [run["cpu"] for run in ours])]
        costs = ["" if math.isnan(cost) else f"{cost:.3g}" for cost in (*costs, costs[0] / costs[1])]
        rows.append([of, *returns, costs[0], preset, interval_of(ours), *costs[1:]])
    columns = ["BenchMARL's", *(f"return at a rate of {rate}".replace("e-0", "e-") for rate in rates), "CPU seconds"]
    table = markdown([*columns, "preset", "its return", "its CPU seconds", "CPU seconds, times"], rows)
    machines = sorted({run["on"] for by_rate in found.values() for runs in by_rate.values() for run in runs})
    return f"{table}\n{benchmarl['software']}; {'; '.join(machines)}.\n"


def beside_epymarl(figures: Mapping[str, Any]) -> str:
    """A row a preset with a published return; ours is the team's, the sum over its members."""
    columns = ("preset", "seeds", "steps", "at the end of training", "greedy", "EPyMARL's steps", "EPyMARL's return")
    rows = []
    for preset, (published, millions) in EPYMARL.items():
        _, algorithm, config = mc.preset(preset)
        steps = config.total_steps // (1 if algorithm.wants_team else MEMBERS)  # of the environment
        runs = figures[preset]["runs"].values()
        returns = MEMBERS * np.array([(run["curve"][-1], run["last"]) for run in runs])  # [runs, 2]
        ours = [with_interval(*interquartile_mean(scores)) for scores in returns.T]
        rows.append([preset, len(runs), f"{steps:,}", *ours, f"{millions},000,000", f"{published:.2f}"])
    return markdown(columns, rows)


def threshold_of(env: str) -> float | None:
    """What Gymnasium's registry calls solved; None for environments without a threshold, and of other packages."""
    spec = gymnasium.registry.get(env.partition(":")[2])
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """A panel a preset: the mean of the runs' curves, a band from the lowest to the highest, and the threshold."""
    lines = math.ceil(len(figures) / PANELS)
    with picture(path, lines, PANELS, figsize=(12, 2 * lines), dpi=90) as (_, panels):
        for axes in panels[len(figures) :]:
            axes.set_axis_off()
        for axes, (preset, record) in zip(panels, figures.items(), strict=False):
            env, _, config = mc.preset(preset)
            curves = np.array([run["curve"] for run in record["runs"].values()], float)  # [runs, bins]
            whole = ~np.isnan(curves).any(0)  # where every run has some returns
            steps, curves = ((np.arange(len(whole)) + 0.5) / len(whole) * config.total_steps)[whole], curves[:, whole]
            axes.fill_between(steps, curves.min(0), curves.max(0), alpha=0.25, linewidth=0)
            axes.plot(steps, curves.mean(0), linewidth=1.5)
            if (threshold := threshold_of(env)) is not None:
                axes.axhline(threshold, color="0.5", linewidth=1, linestyle="--")
            axes.set_title(preset, fontsize=9)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.tick_params(labelsize=7)
