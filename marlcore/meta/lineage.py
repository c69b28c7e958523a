"""The members of a population: their settings, scores and copies, and each method's decisions. It starts no runs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ..checks import brief, check_kinds, check_whole, names_error
from ..config import PopulationConfig
from ..declared import Declared, Whole
from ..record import believed, canvas, holds_files, read_json, say_that_none_ended, write_atomically, write_json

STATE, TABLE, PICTURE = "population.json", "lineage.csv", "lineage.png"
EXPECTED = "resume: expected the directory of a population"
AtLeast0 = Annotated[int, Whole(0)]
_DRAWS = 1000  # of settings, until some are allowed together
LOST = -math.inf  # the score of a member that diverged; an unknown score is NaN


@dataclass
class MemberState(Declared):
    """The saved state of a population's member, without its run."""

    settings: dict[str, Any]
    target: AtLeast0  # total steps of its run at the end of its present or last segment
    begin: AtLeast0 = 0  # steps at which that segment began
    score: float = math.nan  # the newest score
    done: bool = False  # whether the member takes no more steps
    copied: AtLeast0 | None = None  # the number of the newest copy that the member made


@dataclass
class Lineage:
    """Holds a population's members and table, as its files store them."""

    folder: Path
    config: PopulationConfig
    total_steps: int  # of each member, unless halving ends it earlier
    members: list[MemberState]
    seed: int  # of the members' decisions
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the table, one for each segment that has ended

    @classmethod
    def begun(
        cls, folder: Path, config: PopulationConfig, total_steps: int, seed: int,
        fit: Callable[[Mapping[str, Any]], bool] = lambda settings: True,
    ) -> Lineage:  # fmt: skip
        """Makes a new population with drawn settings that `fit` accepts.

        Raises ValueError if the folder is not empty, or if many draws in turn do not fit.
        """
        if folder.exists() and (not folder.is_dir() or holds_files(folder)):
            raise ValueError(f"run_dir: expected a new or empty directory, got {str(folder)!r}")
        generator = np.random.default_rng(seed)

        def draw() -> dict[str, Any]:
            for _ in range(_DRAWS):
                settings = {name: source.draw(generator) for name, source in config.settings.items()}
                if fit(settings):
                    return settings
            raise ValueError(f"settings: expected values that are allowed together, got none in {_DRAWS} draws")

        drawn = [draw() for _ in range(config.size)]
        first = total_steps if config.method == "random" else min(config.interval, total_steps)
        return cls(folder, config, total_steps, [MemberState(settings, first) for settings in drawn], seed)

    @classmethod
    def read(cls, folder: Path, config: PopulationConfig, total_steps: int, seed: int) -> Lineage:
        """Reads a folder's population, and checks that the distributions of `config` allow all members' values.

        Raises ValueError if the folder has no population, if the population began with other settings, or if its file
        is invalid.
        """
        with believed(EXPECTED, folder, STATE):
            saved = read_json(folder / STATE)
            original = {name: saved[name] for name in _fixed(config, total_steps)}
        for name, given in _fixed(config, total_steps).items():
            if original[name] != given:
                raise ValueError(f"population.{name}: expected {brief(original[name])}, as at its start, got {given}")
        with believed(EXPECTED, folder, STATE):
            check_kinds(saved, {"rows": list})
            members = [_member(config, plain) for plain in saved["members"]]
            check_whole("members", len(members), config.size, config.size)
            for row in saved["rows"]:
                _check_row(config, row)
        return cls(folder, config, total_steps, members, seed, saved["rows"])

    def write(self) -> None:
        """Writes population.json, which `read` reads, and then lineage.csv; each replaces the earlier file."""
        members = [{**asdict(state), "score": repr(state.score)} for state in self.members]
        write_json(
            self.folder / STATE, {**_fixed(self.config, self.total_steps), "members": members, "rows": self.rows}
        )
        table = io.StringIO()
        names = ["member", "step", "score", "copied", *self.config.settings]
        writer = csv.DictWriter(table, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.folder / TABLE, table.getvalue().encode())

    def ended(self, member: int, steps: int, score: float) -> None:
        """Adds a table row for the segment that a member has ended after `steps` steps in all."""
        state = self.members[member]
        state.begin = steps
        row: dict[str, Any] = {"member": member, "step": steps, "score": repr(score), "copied": ""}
        for name, value in state.settings.items():
            row[name] = json.dumps(value) if isinstance(value, (tuple, list)) else value
        self.rows.append(row)

    def copied(self, member: int, parent: int) -> None:
        """Writes into the row of a member's last segment that the member has copied the member `parent`."""
        next(row for row in reversed(self.rows) if row["member"] == member)["copied"] = parent

    def advance(self, member: int, steps: int) -> None:
        """Sets the step count to which a member trains next, for the methods pbt and random."""
        state, interval = self.members[member], self.config.interval
        state.target = self.total_steps
        if self.config.method == "pbt":
            state.target = min(self.total_steps, (steps // interval + 1) * interval)
        state.done = steps >= self.total_steps

    def promote(self) -> list[int]:
        """Sets the step counts at which promoted members end their next rung; returns these members' numbers."""
        lengths, promotions = rungs(self.config, self.total_steps), []
        scores: list[dict[int, float]] = [{} for _ in lengths]
        for row in self.rows:  # a member's n-th row belongs to the n-th rung
            rung = next(rung for rung in scores if row["member"] not in rung)
            rung[row["member"]] = np.nan_to_num(float(row["score"]), nan=LOST, neginf=LOST)
        for scored, length, following in zip(scores, lengths, lengths[1:], strict=False):
            begun = [member for member, state in enumerate(self.members) if state.target > length]
            for member in promoted(scored, begun, self.config.eta):
                self.members[member].target, self.members[member].done = following, False
                promotions.append(member)
        return promotions

    @property
    def scores(self) -> dict[int, float]:
        """The members' newest scores, by the member's number; members without a score are left out."""
        return {member: state.score for member, state in enumerate(self.members) if not math.isnan(state.score)}

    def generator_of(self, member: int) -> np.random.Generator:
        """Returns the generator for a member's next decision; a resumed population gets the same generator."""
        return np.random.default_rng([self.seed, len(self.rows), member])


def _member(config: PopulationConfig, plain: Mapping[str, Any]) -> MemberState:
    """Makes a member from its saved state. Raises any error (see `believed`) if the state does not fit `config`."""
    settings = plain["settings"]
    if settings.keys() != config.settings.keys():
        raise names_error("settings", config.settings, settings)
    allowed = {name: source.restored(name, settings[name]) for name, source in config.settings.items()}
    return MemberState(**{**plain, "settings": allowed, "score": float(plain["score"])})


def _check_row(config: PopulationConfig, row: Mapping[str, Any]) -> None:
    names = {"member", "step", "score", "copied", *config.settings}
    if row.keys() != names:
        raise names_error("rows", names, row)
    check_whole("step", row["step"], 0)
    for name in ("member", *(["copied"] if row["copied"] != "" else [])):
        check_whole(name, row[name], 0, config.size - 1)
    float(row["score"])


def _fixed(config: PopulationConfig, total_steps: int) -> dict[str, Any]:
    """Returns the settings that a resumed population must keep; the ranges of the varied settings may change."""
    fixed = {name: getattr(config, name) for name in ("size", "method", "interval")}
    lengths = rungs(config, total_steps) if config.method == "halving" else []
    return {"rungs": lengths, **fixed, "settings": sorted(config.settings)}


def parent_of(member: int, scores: Mapping[int, float], share: float, generator: np.random.Generator) -> int | None:
    """Draws the member that `member` copies, by truncation selection; returns None if it copies no member.

    A member whose score is in the lowest fraction `share` of all scores copies a member from the highest fraction
    `share`, if that member's score is higher. Each fraction has at least one member. Diverged members count as lowest.
    """
    ranked = sorted(scores, key=scores.__getitem__)
    count = max(1, int(share * len(ranked)))
    if member not in ranked[:count] and scores.get(member) != LOST:
        return None
    top = ranked[-count:]
    better = [other for other in top if scores[other] > scores[member]]
    return int(generator.choice(better)) if better else None


def explored(config: PopulationConfig, settings: Mapping[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Returns a copied member's settings, each perturbed or, with the probability `config.resample`, drawn anew."""
    return {
        name: source.draw(generator)
        if generator.random() < config.resample
        else source.perturbed(settings[name], float(generator.choice(config.factors)))
        for name, source in config.settings.items()
    }


def promoted(rung: Mapping[int, float], begun: Collection[int], eta: int) -> list[int]:
    """Returns the best 1/eta of a rung's members except those that have `begun` the next (asynchronous halving)."""
    ranked = sorted((member for member in rung if rung[member] > LOST), key=rung.__getitem__, reverse=True)
    return [member for member in ranked[: len(rung) // eta] if member not in begun]


def plot_lineage(lineage: Lineage) -> None:
    """Plots each member's scores over its steps; a dotted line leads from a parent's score to that of its copy."""
    title = f"{lineage.config.method} of {lineage.config.size} members"
    with canvas(lineage.folder / PICTURE, title, 7) as (_, axes):
        points: dict[int, list[tuple[int, float]]] = {member: [] for member in range(len(lineage.members))}
        for row in lineage.rows:
            score, parent = float(row["score"]), row["copied"]
            if not math.isfinite(score):
                continue
            points[row["member"]].append((row["step"], score))
            if parent != "" and points[parent]:
                axes.plot(*zip(points[parent][-1], (row["step"], score), strict=True), ":", color="0.6", linewidth=1)
        if not any(points.values()):
            say_that_none_ended(axes)
            return
        axes.set(xlabel="steps of a member", ylabel="score (dotted: copied from)")
        best = max(lineage.scores, key=lineage.scores.__getitem__)
        for member, scored in points.items():
            color, width = ("C3", 2.5) if member == best else ("C0", 1.0)
            axes.plot(*zip(*scored, strict=True), ".-", color=color, linewidth=width, alpha=0.8) if scored else None
        axes.plot([], [], color="C3", label=f"member {best}, the best in the end")
        axes.legend(frameon=False)


def rungs(config: PopulationConfig, total_steps: int) -> list[int]:
    """Returns the steps of each rung of successive halving; the last rung has `total_steps`."""
    lengths = (config.interval * config.eta**power for power in itertools.count())
    return [*itertools.takewhile(lambda steps: steps < total_steps, lengths), total_steps]
