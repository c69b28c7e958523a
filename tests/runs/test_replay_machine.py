"""Any order of anything: a replay beside lists of episodes, and each row of each batch compared with what these say.

Writers add, end episodes, are replaced, and die, also inside an add; the replay wraps, is saved and loaded; several
samplers of every kind draw, update priorities and hand their states on. The suite runs a few thousand steps;

    python tests/long.py replay_machine 100000

runs at least as many as it says, other ones each time unless a second number, the seed, is given; it ends with how
many rows were compared, and raises the first difference with the steps that lead to it.
"""

from __future__ import annotations

import copy
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mapped import Mapped
from model import Model, Priorities, add_batch, random_row

from marlcore import Field, LaneBusy, NotEnoughData, Prioritized, ReplayBuffer, Sequence, TransitionSpec
from marlcore.replay import prioritized

EVERY = 3
EQUAL = prioritized.EQUAL
SPECS = {
    "rows": TransitionSpec(Field((2,)), Field((), "int16"), {"priority": Field(), "done": Field((), "bool")}),
    "states": TransitionSpec(
        {"x": Field((2,)), "frame": Field((9, 9, 7), "uint8")},
        Field((2,)),
        {"priority": Field(), "h": Field((3,), every=EVERY), "c": Field((5, 7), "float64", every=EVERY)},
    ),
    "next_obs": TransitionSpec(
        {"x": Field((3,)), "frame": Field((91, 3), "uint8")}, Field(), {"priority": Field()}, next_obs=True
    ),
}
LANE = st.integers(0, 2)
ENDINGS = st.lists(st.sampled_from([""] * 8 + ["terminated", "truncated"]), min_size=1, max_size=8)
PRIORITIES = st.builds(
    Prioritized,
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    epsilon=st.sampled_from([0.0, 0.01]),
    beta_steps=st.sampled_from([None, 3]),
    initial=st.sampled_from([None, "priority"]),
)
FEW = st.sampled_from([1, 1, 2, 3, 4])
WINDOWS = st.fixed_dictionaries({
    "stack": FEW, "n_step": FEW, "length": st.integers(0, 6), "burn_in": st.integers(0, 5),
    "period": st.integers(0, 3), "whole": st.booleans(), "replace": st.booleans(),
    "prioritized": st.none() | PRIORITIES, "gamma": st.sampled_from([0.0, 0.5, 0.97, 1.0]),
    "pad": st.sampled_from(["repeat", "zero"]), "batch_size": st.sampled_from([1, 7, 16]),
})  # fmt: skip


class Watched:
    """A sampler, and what its batches must look like."""

    def __init__(self, replay: ReplayBuffer, model: Model, options: dict[str, Any]) -> None:
        self.sampler = replay.sampler(min_size=1, **options)
        self.model, self.options = model, options
        self.window = {name: options[name] for name in ("stack", "n_step", "sequence")}
        sequence = options["sequence"]
        few = sequence is not None and (sequence.whole or sequence.period > 1)
        self.prioritized = options["prioritized"] or (EQUAL if few else None)
        self.priorities = Priorities(model, self.prioritized, **self.window) if self.prioritized else None
        self.batches = 0
        self.newest: Any = None
        self.floors = [0] * len(model.lanes)

    @property
    def beta(self) -> float:
        beta, steps = self.prioritized.beta, self.prioritized.beta_steps
        return beta if steps is None else beta + (1 - beta) * min(1.0, self.batches / steps)

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """The model as this sampler sees it, without what was written before it was cleared."""
        for lane, floor in zip(self.model.lanes, self.floors, strict=True):
            lane.floor = floor
        yield
        for lane in self.model.lanes:
            lane.floor = 0

    def clear(self) -> None:
        self.sampler.clear()
        self.floors = [lane.next_ticket for lane in self.model.lanes]

    def sample(self) -> int:
        """Draws a batch and compares it; the transitions in it. The model must be `cleared`."""
        oracle = self.priorities
        allowed = oracle.catch_up() if oracle else self.model.sampleable(**self.window)
        able = any(oracle.masses.values()) if oracle else bool(allowed)
        if not self.options["replace"]:
            able = len(allowed) >= self.options["batch_size"]
        assert self.sampler.can_sample() == able
        if not able:
            with pytest.raises(NotEnoughData):
                self.sampler.sample()
            return 0
        self.newest = batch = self.sampler.sample()
        assert self.sampler.stats.lapped == 0  # nobody writes meanwhile: what was drawn was held
        gamma, pad = self.options["gamma"], self.options["pad"]
        self.model.check(batch, gamma=gamma, pad=pad, allowed=allowed, weighted=bool(oracle), **self.window)
        assert self.options["replace"] or len({*batch.index.tolist()}) == len(batch)
        if oracle:
            oracle.check(batch, self.sampler, self.beta)
            oracle.check_masses(self.sampler)
        self.batches += 1
        return int(batch.valid[..., -1].sum())

    def forget(self) -> None:
        """What a clear of the replay does to a sampler."""
        if self.priorities:
            ignored = self.priorities.ignored
            self.priorities = Priorities(self.model, self.prioritized, **self.window)
            self.priorities.ignored = ignored

    def update(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        with pytest.raises(ValueError, match=r"^priority: expected finite numbers of at least 0, got nan in row 0"):
            self.sampler.update_priorities(indices, np.full(len(indices), np.nan))
        self.sampler.update_priorities(indices, priorities)
        with self.cleared():
            self.priorities.update(indices, priorities)
        assert self.sampler.stats.ignored == self.priorities.ignored

    def successor(self, replay: ReplayBuffer, model: Model, state: dict[str, np.ndarray]) -> Watched:
        """A new sampler that goes on from this one's state."""
        after = Watched(replay, model, self.options | {"seed": 0})
        after.sampler.load_state_dict(state)
        after.batches, after.floors = self.batches, self.floors
        if self.priorities:
            known = after.priorities
            known.masses, known.drawn = dict(self.priorities.masses), set(self.priorities.drawn)
            known.highest = self.priorities.highest
        return after


class ReplayMachine(RuleBasedStateMachine):
    tally: ClassVar[Counter[str]] = Counter()

    @initialize(
        name=st.sampled_from(list(SPECS)), lanes=st.integers(1, 3), intervals=st.integers(3, 8), shared=st.booleans(),
        number=st.integers(0, 2**20), windows=st.lists(WINDOWS, min_size=2, max_size=2),
    )  # fmt: skip
    def make(self, name, lanes, intervals, shared, number, windows):
        self.tally["steps"] -= 1  # no step of its own
        self.spec, self.rows = SPECS[name], EVERY * intervals
        self.rng = np.random.default_rng(number)
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(self.spec, lanes, self.rows)
        self.replay = ReplayBuffer.create(self.spec, lanes * self.rows, lanes)
        self.reader = ReplayBuffer.attach(self.replay.handle)
        self.shared = shared and self.spec.next_obs
        self.writers: dict[tuple[int, int], Any] = {}
        self.watched = [Watched(self.reader, self.model, self.options(window)) for window in windows]

    # ---- writers ----

    def lane(self, number):
        return number % len(self.model.lanes)

    def writer(self, lane, who=0):
        """The lane's writer; of a shared lane one of two."""
        key = (lane, who * self.shared)
        if key not in self.writers:
            self.writers[key] = self.replay.writer(lane, shared=self.shared)
            self.model.lanes[lane].seam()
        return self.writers[key]

    def row(self, ending=""):
        row = random_row(self.spec, self.rng, 0.0)
        row["terminated"], row["truncated"] = ending == "terminated", ending == "truncated"
        final = ending == "truncated" or (ending and self.rng.random() < 0.5)
        if final and not self.spec.next_obs:
            row["final_obs"] = random_row(self.spec, self.rng, 0.0)["obs"]
        has_priority = self.rng.random() < 0.7
        row["priority"] = np.float32(abs(self.rng.normal()) if has_priority else np.nan)
        return row

    def write(self, lane, endings, batched, who):
        writer, rows = self.writer(lane, who), [self.row(ending) for ending in endings]
        version = int(self.rng.integers(2**33))
        if batched:
            while len(rows) + sum(row["truncated"] for row in rows) > self.rows:
                rows.pop()
            add_batch(writer, self.model, lane, rows, version)
            return
        writer.policy_version = version
        for row in rows:
            assert writer.add(**row) == self.model.add(lane, version=version, **row)

    @rule(lane=LANE, endings=ENDINGS, batched=st.booleans(), who=st.integers(0, 1))
    def add(self, lane, endings, batched, who):
        self.write(self.lane(lane), endings, batched, who)

    @rule(lane=LANE, count=st.integers(1, 8))
    def add_rows_that_end_nothing(self, lane, count):
        self.write(self.lane(lane), [""] * count, False, 0)

    @rule(lane=LANE)
    def begin_an_episode(self, lane):
        lane = self.lane(lane)
        self.writer(lane).new_episode()
        self.model.lanes[lane].seam()

    @rule(lane=LANE)
    def truncate_the_last_row(self, lane):
        lane = self.lane(lane)
        writer, ends = self.writer(lane), self.model.lanes[lane].episodes[-1].rows and not self.spec.next_obs
        final_obs = random_row(self.spec, self.rng, 0.0)["obs"]
        if ends:
            assert writer.end_episode(final_obs=final_obs) == self.model.lanes[lane].truncate(final_obs)
        else:
            with pytest.raises(ValueError, match=r"^end_episode: expected (an unfinished episode|a spec without)"):
                writer.end_episode(final_obs=final_obs)

    @rule(lane=LANE)
    def refuse_a_bad_row(self, lane):
        with pytest.raises(ValueError):
            self.writer(self.lane(lane)).add(**self.row() | {"reward": np.nan})

    @rule(lane=LANE)
    def replace_the_writer(self, lane):
        lane = self.lane(lane)
        self.writer(lane)
        with pytest.raises(LaneBusy):
            self.reader.writer(lane)
        self.writers.pop((lane, 0)).close()
        self.writer(lane)

    @rule(lane=LANE, who=st.integers(0, 1))
    def kill_the_writer(self, lane, who):
        """The kernel releases the lane; the writer itself does nothing more."""
        lane = self.lane(lane)
        self.writer(lane, who)._claim.close()
        del self.writers[lane, who * self.shared]

    @rule(lane=LANE, endings=ENDINGS, batched=st.booleans(), who=st.integers(0, 1))
    def kill_the_writer_inside_an_add(self, lane, endings, batched, who):
        """The writer dies after it raised `reserved` and wrote some words, before it committed any row."""
        lane, endings = self.lane(lane), endings if batched else endings[:1]
        self.writer(lane, who)
        mapped = Mapped(self.replay)
        rows = mapped.body[mapped.geometry.column_offset(0) : mapped.geometry.nbytes].view(np.uint64)
        committed = mapped.counters(lane)[:1]
        rows_before, committed_before = rows.copy(), committed.copy()
        before = copy.deepcopy(self.model.lanes[lane])
        self.write(lane, endings, batched, who)
        unwritten = self.rng.random(len(rows)) < self.rng.random()
        rows[unwritten] = rows_before[unwritten]
        committed[:] = committed_before
        before.reserved = max(before.reserved, self.model.lanes[lane].next_ticket)
        self.model.lanes[lane] = before
        self.kill_the_writer(lane, who)

    # ---- samplers ----

    def compare(self, watched):
        with watched.cleared():
            rows = watched.sample()
        self.tally["rows"] += rows
        self.tally["batches"] += rows > 0

    def pick(self, which):
        return self.watched[which % len(self.watched)]

    @rule(window=WINDOWS)
    def open_a_sampler(self, window):
        self.watched = [*self.watched[-3:], Watched(self.reader, self.model, self.options(window))]
        self.compare(self.watched[-1])

    def options(self, window):
        """The options drawn, as far as the spec and the lanes' rows allow."""
        options = dict(window) | {"seed": int(self.rng.integers(2**32)), "sequence": None}
        length, burn_in, period, whole = (options.pop(name) for name in ("length", "burn_in", "period", "whole"))
        few = options["batch_size"] > len(self.model.lanes) * self.rows
        options["replace"] |= few or options["prioritized"] is not None
        if length and whole and not self.spec.next_obs:
            options["sequence"] = Sequence(length, whole=True)
        elif length and not self.spec.next_obs:
            burn_in, every = min(burn_in, length - 1), self.spec.state_every
            shortest = -(-(length - burn_in) // every) * every
            options["sequence"] = Sequence(length, burn_in, period * every or shortest)
        if self.spec.next_obs or self.reads(options) > self.rows:
            options |= {"stack": 1, "n_step": 1}
        if self.reads(options) > self.rows:
            options["sequence"] = None
        return options

    def reads(self, options):
        stack, sequence = options["stack"], options["sequence"]
        more = sequence.length - 1 + (sequence.period or 1) - 1 if sequence else 0
        return (max(stack, self.spec.state_every) if sequence else stack) + options["n_step"] + more

    @precondition(lambda self: self.watched)
    @rule(which=st.integers(0, 3))
    def clear_a_sampler(self, which):
        self.pick(which).clear()

    @rule()
    def clear_the_replay(self):
        self.reader.clear()
        for lane in self.model.lanes:
            lane.clear()
        for watched in self.watched:
            watched.forget()

    @rule(window=WINDOWS)
    def read_all_that_is_held(self, window):
        """Reads by index, in batches and in episodes, with a sampler's window."""
        options = self.options(window)
        given = {name: options[name] for name in ("stack", "n_step", "gamma", "pad")}
        sequence, size = options["sequence"], options["batch_size"]
        chosen = self.model.sampleable(given["stack"], given["n_step"], sequence)
        self.model.check(self.reader.read([*chosen], sequence=sequence, **given), sequence=sequence, **given)
        allowed = self.model.sampleable(given["stack"], given["n_step"])
        read = [self.model.check(batch, allowed=allowed, **given) for batch in self.reader.batches(size, **given)]
        assert sorted(chain(*read)) == sorted(allowed) and all(len(batch) == size for batch in read[:-1])
        if not self.spec.next_obs:
            episodes = [self.model.check(batch, **given) for batch in self.reader.episodes(**given)]
            assert sorted(episodes) == sorted(self.model.whole_episodes())

    @precondition(lambda self: self.watched)
    @rule()
    def sample_with_each(self):
        for watched in self.watched:
            self.compare(watched)

    @precondition(lambda self: any(watched.options["prioritized"] and watched.newest for watched in self.watched))
    @rule(which=st.integers(0, 3), strays=st.integers(0, 3), zeros=st.booleans())
    def update_priorities(self, which, strays, zeros):
        """Updates the newest batch, with duplicates, and arbitrary other indices."""
        able = [watched for watched in self.watched if watched.options["prioritized"] and watched.newest]
        watched = able[which % len(able)]
        rows = max(lane.next_ticket for lane in self.model.lanes) * len(self.model.lanes)
        indices = np.concatenate([watched.newest.index, self.rng.integers(-3, rows + 3, strays)])
        self.rng.shuffle(indices)
        watched.update(indices, self.rng.exponential(size=len(indices)) * (self.rng.random(len(indices)) > 0.3 * zeros))
        self.compare(watched)

    @precondition(lambda self: self.watched)
    @rule(which=st.integers(0, 3))
    def hand_a_state_on(self, which):
        """The sampler and its successor make the same draws; the successor replaces it."""
        watched = self.pick(which)
        after = watched.successor(self.reader, self.model, watched.sampler.state_dict())
        self.compare(watched)
        self.compare(after)
        with watched.cleared():
            allowed = self.model.sampleable(**watched.window)
            least = 1 if watched.options["replace"] else watched.options["batch_size"]
            able = (watched.priorities and watched.options["replace"]) or len(allowed) >= least
        if able:
            both = [watched.sampler.state_dict() for watched in (watched, after)]
            for name, value in both[0].items():
                assert np.array_equal(value, both[1][name]), name
        self.watched[self.watched.index(watched)] = after

    @rule(which=st.integers(0, 3), in_place=st.booleans())
    def save_and_go_on_with_the_copy(self, which, in_place):
        watched = self.pick(which) if self.watched else None
        path = Path(self.folder.name) / "replay"
        self.replay.save(path, watched and watched.sampler)
        self.close()
        path = path.rename(path.with_name("copy")) if in_place else path
        self.replay = ReplayBuffer.attach(path) if in_place else ReplayBuffer.load(path)
        self.reader = ReplayBuffer.attach(self.replay.handle)
        self.watched = [watched.successor(self.reader, self.model, self.replay.sampler_state)] if watched else []
        for lane in self.model.lanes:
            lane.seam()
        for watched in self.watched:
            self.compare(watched)

    # ---- always ----

    @invariant()
    def holds_as_many(self):
        self.tally["steps"] += 1
        assert len(self.replay) == len(self.reader) == len(self.model)

    @invariant()
    def samples_as_the_model_says(self):
        if self.watched and self.rng.random() < 0.5:
            self.compare(self.pick(self.rng.integers(4)))

    def close(self):
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()
        self.watched.clear()
        self.reader.close()
        self.replay.close()

    def teardown(self):
        if hasattr(self, "replay"):
            self.close()
            self.folder.cleanup()


QUIET = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck), stateful_step_count=50)
TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(QUIET, derandomize=True, max_examples=12)


@pytest.mark.long
def test_the_replay_is_as_the_model_in_many_orders():
    run_state_machine_as_test(ReplayMachine, settings=settings(QUIET, derandomize=True, max_examples=60))


def main(steps: int, start: int = secrets.randbits(32)) -> None:
    tally = ReplayMachine.tally
    print(f"seed {start}", flush=True)
    while tally["steps"] < steps:
        seed(start + tally["steps"])(ReplayMachine)
        examples = min(100, -(-(steps - tally["steps"]) // QUIET.stateful_step_count))
        run_state_machine_as_test(ReplayMachine, settings=settings(QUIET, max_examples=examples))
    compared = f"{tally['batches']} batches, {tally['rows']} rows compared"
    print(f"{tally['steps']} steps, {compared}, 0 differences")
