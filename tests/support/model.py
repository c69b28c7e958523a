"""The oracle of plain Python: a replay is lists of episodes of rows, and a batch must look as these say."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marlcore import Field, Prioritized, ReplayBuffer, Sequence, TransitionSpec
from marlcore.observations import by_name, in_form


@dataclass
class Row:
    """One transition as it was given to the writer; `last` where its episode ended with it."""

    ticket: int
    obs: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    extras: dict[str, Any]
    policy_version: int

    @property
    def last(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Episode:
    """Rows that follow one another; `final` is (ticket, observation) where one was given."""

    rows: list[Row] = field(default_factory=list)
    final: tuple[int, Any] | None = None

    @property
    def ended(self) -> bool:
        return bool(self.rows) and self.rows[-1].last

    def frames(self) -> list[Any]:
        return [row.obs for row in self.rows] + ([self.final[1]] if self.final else [])


class Lane:
    def __init__(self, rows: int) -> None:
        self.capacity = rows
        self.next_ticket = 0
        self.reserved = 0  # by a writer that was killed before it had written all that it was about to
        self.floor = 0  # of a sampler that was cleared
        self.cleared = 0  # below it are rows from before the replay was cleared
        self.episodes = [Episode()]

    @property
    def lowest(self) -> int:
        return max(self.floor, self.cleared, max(self.next_ticket, self.reserved) - self.capacity)

    def clear(self) -> None:
        self.cleared = self.next_ticket

    def seam(self) -> None:
        if self.episodes[-1].rows:
            self.episodes.append(Episode())

    def add(self, obs, action, reward, terminated, truncated, final_obs, policy_version, extras) -> int:
        ticket = self.next_ticket
        episode = self.episodes[-1]
        episode.rows.append(Row(ticket, obs, action, reward, terminated, truncated, extras, policy_version))
        self.next_ticket += 1
        if final_obs is not None:
            episode.final = (self.next_ticket, final_obs)
            self.next_ticket += 1
        if terminated or truncated:
            self.episodes.append(Episode())
        self._forget()
        return ticket

    def truncate(self, final_obs) -> int:
        """Ends the newest episode after its last row, which was added without its end."""
        ticket, episode = self.next_ticket, self.episodes[-1]
        episode.rows[-1].truncated, episode.final = True, (ticket, final_obs)
        self.next_ticket += 1
        self.episodes.append(Episode())
        self._forget()
        return ticket

    def _forget(self) -> None:
        self.episodes = [e for e in self.episodes[:-1] if e.rows[-1].ticket >= self.lowest] + self.episodes[-1:]

    def held(self) -> int:
        return sum(row.ticket >= self.lowest for episode in self.episodes for row in episode.rows)


class Model:
    """What a replay holds, and what a batch of it must look like."""

    def __init__(self, spec: TransitionSpec, lanes: int, lane_rows: int) -> None:
        self.spec = spec
        self.lanes = [Lane(lane_rows) for _ in range(lanes)]

    def __len__(self) -> int:
        return sum(lane.held() for lane in self.lanes)

    def add(self, lane, obs, action, reward, terminated=False, truncated=False, final_obs=None, version=0, **extras):
        return self.lanes[lane].add(obs, action, reward, terminated, truncated, final_obs, version, extras)

    def sampleable(self, stack: int, n_step: int, sequence: Sequence | None = None) -> dict[int, tuple[Episode, int]]:
        """The episode and place in it of each transition, or sequence's first, that may be drawn; by index."""
        allowed = {}
        for number, lane in enumerate(self.lanes):
            for episode in lane.episodes:
                for place, row in enumerate(episode.rows):
                    if self._may_be_drawn(lane, episode, place, stack, n_step, sequence):
                        allowed[row.ticket * len(self.lanes) + number] = (episode, place)
        return allowed

    def whole_episodes(self) -> list[list[int]]:
        """The indices of each episode that is held from its first row to its end."""
        return [
            [row.ticket * len(self.lanes) + number for row in episode.rows]
            for number, lane in enumerate(self.lanes)
            for episode in lane.episodes
            if episode.ended and episode.rows[0].ticket >= lane.lowest
        ]

    def _may_be_drawn(self, lane, episode, place, stack, n_step, sequence) -> bool:
        rows = episode.rows
        if rows[max(0, place - stack + 1)].ticket < lane.lowest:
            return False
        if sequence is None:
            return self.has_return(episode, place, n_step)
        if sequence.whole:
            return place == 0 and episode.ended and len(rows) <= sequence.length
        every = self.spec.state_every
        if place % (sequence.period or sequence.length - sequence.burn_in):
            return False
        if place and rows[place].ticket // every * every < lane.lowest:
            return False
        steps = self.steps(episode, place, n_step, sequence.length)
        if place and steps <= sequence.burn_in:
            return False
        follows = rows[-1].ticket + 1 < lane.next_ticket  # a row behind the episode's last: nothing is added to it
        return steps == sequence.length or (steps > 0 and (episode.ended or follows))

    def has_return(self, episode: Episode, place: int, n_step: int) -> bool:
        """Whether the rewards of the next n steps, and what follows them, are there or end with the episode."""
        rows = episode.rows
        return self.spec.next_obs or place + n_step < len(rows) or episode.ended

    def steps(self, episode: Episode, place: int, n_step: int, length: int) -> int:
        """Transitions of the sequence from `place` on, as far as the episode goes."""
        places = range(place, min(place + length, len(episode.rows)))
        return sum(self.has_return(episode, at, n_step) for at in places)

    def check(
        self, batch, stack=1, n_step=1, gamma=0.99, pad="repeat", allowed=None, sequence=None, weighted=False
    ) -> list[int]:
        """Compares every row of a batch, bit for bit; returns their indices."""
        allowed = self.sampleable(stack, n_step, sequence) if allowed is None else allowed
        for i, index in enumerate(batch.index.tolist()):
            assert index in allowed, f"row {i}: {index} may not be drawn"
            episode, place = allowed[index]
            assert weighted or batch.weight[i] == 1
            if sequence is None:
                assert batch.mask is None
                self._check_transition(batch, (i,), episode, place, stack, n_step, gamma, pad)
            else:
                self._check_sequence(batch, i, episode, place, stack, n_step, gamma, pad, sequence)
        return batch.index.tolist()

    def _check_sequence(self, batch, i, episode, place, stack, n_step, gamma, pad, sequence) -> None:
        steps = self.steps(episode, place, n_step, sequence.length)
        burn_in = sequence.burn_in if place else 0
        assert batch.mask[i].tolist() == [burn_in <= at < steps for at in range(sequence.length)]
        for name in self._extras(intervals=True):
            state = batch.extras[name][i]
            same(state, episode.rows[place].extras[name] if place else np.zeros_like(state))
        for at in range(steps):
            self._check_transition(batch, (i, at), episode, place + at, stack, n_step, gamma, pad)
        rest = (i, slice(steps, None))
        arrays = [batch.action, batch.reward, batch.discount, batch.terminated, batch.truncated, batch.valid]
        arrays += [batch.policy_version, *(batch.extras[name] for name in self._extras())]
        for array in arrays:
            assert not array[rest].any(), "behind the episode's end are zeros"
        # Observations behind the end share the frames before it; their own frames are zeros.
        for name in self.spec.obs_fields:
            for array, first in ((part(batch.obs, name), steps + 1), (part(batch.next_obs, name), steps)):
                newest = array[i, first:, -1] if stack > 1 else array[i, first:]
                assert not newest.any()

    def _extras(self, intervals: bool = False) -> list[str]:
        return [name for name, one in self.spec.extras.items() if (one.every > 1) == intervals]

    def _check_transition(self, batch, at, episode, place, stack, n_step, gamma, pad) -> None:
        row = episode.rows[place]
        window = [row] if self.spec.next_obs else episode.rows[place : place + n_step]
        total, discount = 0.0, 1.0
        for following in window:
            total += discount * float(np.float32(following.reward))
            discount *= gamma
        ending = window[-1]
        same(batch.action[at], row.action)
        assert batch.reward[at] == np.float32(total)
        assert batch.discount[at] == np.float32(0.0 if ending.terminated else discount)
        assert bool(batch.terminated[at]) == ending.terminated
        assert bool(batch.truncated[at]) == ending.truncated
        assert batch.policy_version[at] == row.policy_version % 2**32
        for name in self._extras():
            same(batch.extras[name][at], row.extras[name])
        assert batch.valid[at].tolist() == [place - back >= 0 for back in reversed(range(stack))]
        after = place + len(window)
        for name in self.spec.obs_fields:
            frames = [part(frame, name) for frame in episode.frames()]
            same(part(batch.obs, name)[at], stacked(frames, place, stack, pad))
            if self.spec.next_obs:
                same(part(batch.next_obs, name)[at], part(row.extras["next_obs"], name))
            elif after < len(frames):
                same(part(batch.next_obs, name)[at], stacked(frames, after, stack, pad))
            else:
                assert ending.terminated  # what follows is unspecified


class Priorities:
    """What a prioritized sampler of a model's replay must know: the mass of whatever may be drawn, by index."""

    def __init__(self, model: Model, options: Prioritized, **window: Any) -> None:
        self.model, self.options, self.window = model, options, window
        self.masses, self.drawn = dict[int, float](), set[int]()
        self.highest, self.ignored = 1.0 + options.epsilon, 0

    def catch_up(self) -> dict[int, tuple[Episode, int]]:
        """As each batch begins: new ones get their first priority, lost ones lose theirs. What may be drawn."""
        allowed = self.model.sampleable(**self.window)
        self.masses = {index: mass for index, mass in self.masses.items() if index in allowed}
        self.drawn &= allowed.keys()
        lanes = len(self.model.lanes)
        for index in sorted(allowed.keys() - self.masses, key=lambda index: (index % lanes, index // lanes)):
            episode, place = allowed[index]
            stored = float(episode.rows[place].extras.get(self.options.initial, np.nan))
            priority = self.highest if np.isnan(stored) else stored + self.options.epsilon
            self.highest = max(self.highest, priority)
            self.masses[index] = priority**self.options.alpha
        return allowed

    def update(self, indices: Any, priorities: Any) -> None:
        lanes = len(self.model.lanes)
        for index, priority in zip(np.asarray(indices).tolist(), np.asarray(priorities).tolist(), strict=True):
            held = index >= 0 and index // lanes >= self.model.lanes[index % lanes].lowest
            if held and index in self.masses and index in self.drawn:
                value = priority + self.options.epsilon
                self.highest = max(self.highest, value)
                self.masses[index] = value**self.options.alpha
            else:
                self.ignored += 1

    def check(self, batch: Any, sampler: Any, beta: float) -> None:
        """After `catch_up` and the sampler's `sample`: its total and the batch's weights are this oracle's."""
        indices = batch.index.tolist()
        self.drawn.update(indices)
        masses = np.array([self.masses[index] for index in indices])
        np.testing.assert_allclose(batch.weight, (masses.min() / masses) ** beta, rtol=1e-6)
        assert np.isclose(sampler._rows._tree.total, math.fsum(self.masses.values()), rtol=1e-12, atol=0)
        assert sampler.stats.ignored == self.ignored

    def check_masses(self, sampler: Any) -> None:
        """The sampler's priorities are this oracle's, leaf by leaf; rows that may not be drawn have none."""
        lanes = self.model.lanes
        expected = np.zeros((len(lanes), lanes[0].capacity))
        for index, mass in self.masses.items():
            expected[index % len(lanes), index // len(lanes) % lanes[0].capacity] = mass
        np.testing.assert_allclose(sampler.state_dict()["masses"], expected.ravel(), rtol=1e-12)
        assert np.isclose(sampler.state_dict()["highest"], self.highest, rtol=1e-12)


def part(value, name):
    return by_name(value)[name]


def stacked(frames, place, stack, pad):
    if stack == 1:
        return frames[place]
    zero = np.zeros_like(np.asarray(frames[0]))
    places = range(place - stack + 1, place + 1)
    return np.stack([frames[max(p, 0)] if p >= 0 or pad == "repeat" else zero for p in places])


def same(got, expected) -> None:
    equal = np.array_equal(got, expected) or np.array_equal(got, expected, equal_nan=True)
    assert equal, f"expected {expected}, got {got}"


def fill(replay: ReplayBuffer, model: Model, rng: np.random.Generator, rows: list[int], end: float = 0.15) -> None:
    """Writes rows[lane] random transitions to each lane, in episodes that end in every way, with seams."""
    for lane, count in enumerate(rows):
        writer = replay.writer(lane)
        for number in range(count):
            row = random_row(replay.spec, rng, end)
            version = int(rng.integers(2**33))
            writer.policy_version = version
            late = number % 2 and row["truncated"] and not row["terminated"] and not replay.spec.next_obs
            final_obs = row["final_obs"]
            row |= {"truncated": False, "final_obs": None} if late else {}
            ticket = writer.add(**row)
            assert ticket == model.add(lane, version=version, **row)
            if late:
                assert writer.end_episode(final_obs=final_obs) == model.lanes[lane].truncate(final_obs)
            if rng.random() < 0.05:
                writer.close()
                writer = replay.writer(lane)
                model.lanes[lane].seam()
        writer.close()
        model.lanes[lane].seam()


def filled(spec: TransitionSpec, rows: list[int], lane_rows: int) -> tuple[ReplayBuffer, Model]:
    """A new replay of random rows, as many as said in each lane, and its model."""
    lanes = len(rows)
    replay, model = ReplayBuffer.create(spec, lanes * lane_rows, lanes), Model(spec, lanes, lane_rows)
    fill(replay, model, np.random.default_rng(lanes + lane_rows), rows)
    return replay, model


def allowed_in(model: Model, window: dict[str, Any]) -> dict[int, tuple[Episode, int]]:
    """What a sampler with these options may draw."""
    return model.sampleable(window.get("stack", 1), window.get("n_step", 1), window.get("sequence"))


def add_batch(writer, model: Model, lane: int, rows: list[dict[str, Any]], version: int = 0) -> None:
    """Writes rows with one call, as far as that can say how they end: only a truncated one has its final_obs."""
    rows = [row | {"final_obs": row["final_obs"] if row["truncated"] else None} for row in rows]
    writer.policy_version = version
    ticket = writer.add_batch(**columns(rows))
    first, *_ = (model.add(lane, version=version, **row) for row in rows)
    assert first == ticket


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows for `add` as the arguments of one `add_batch`."""
    finals = [row["final_obs"] for row in rows if row["final_obs"] is not None]
    fields = {name: column([row[name] for row in rows]) for name in rows[0] if name != "final_obs"}
    return fields | {"final_obs": column(finals) if finals else None}


def column(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: np.stack([value[name] for value in values]) for name in values[0]}
    return np.stack(values)


def random_value(rng: np.random.Generator, one: Field) -> np.ndarray:
    if np.dtype(one.dtype).kind == "f":
        return rng.normal(size=one.shape).astype(one.dtype)[()]
    if one.dtype == "bool":
        return np.asarray(rng.random(one.shape) < 0.5)[()]
    return rng.integers(0, 100, one.shape).astype(one.dtype)


def random_obs(rng, spec):
    values = {name: random_value(rng, one) for name, one in spec.obs_fields.items()}
    return in_form(values, spec.obs)


def random_row(spec: TransitionSpec, rng: np.random.Generator, end: float) -> dict[str, Any]:
    terminated, truncated = bool(rng.random() < end), bool(rng.random() < end)
    final = truncated or (terminated and rng.random() < 0.5)
    row = {
        "obs": random_obs(rng, spec),
        "action": random_value(rng, spec.action),
        "reward": float(rng.normal()),
        "terminated": terminated,
        "truncated": truncated,
        "final_obs": random_obs(rng, spec) if final and not spec.next_obs else None,
    }
    row |= {name: random_value(rng, one) for name, one in spec.extras.items()}
    if spec.next_obs:
        row["next_obs"] = random_obs(rng, spec)
    return row


SPECS = {
    "vector": TransitionSpec(Field((4,)), Field((), "int64"), {"log_prob": Field(), "done": Field((), "bool")}),
    "frame": TransitionSpec(Field((84, 84), "uint8"), Field((), "int64")),
    "odd sizes": TransitionSpec(
        {"tail": Field((9, 9, 7), "uint8"), "id": Field((), "uint16"), "head": Field((3,), "int8")},
        Field((2,), "float64"),
        {"state": Field((101,), "float32"), "flag": Field((5,), "bool")},
    ),
    "next_obs": TransitionSpec(
        {"small": Field((3,)), "large": Field((91, 3), "uint8")}, Field(), {"x": Field()}, next_obs=True
    ),
}


def chi_square_limit(bins: int) -> float:
    """Five standard deviations above the mean of chi-square; with a fixed seed the outcome never changes."""
    return bins - 1 + 5 * (2 * (bins - 1)) ** 0.5
