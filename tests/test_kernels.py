"""The kernels against an oracle of plain Python: a replay is lists of episodes of rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from marlcore import Field, ReplayBuffer, TransitionSpec
from marlcore.kernels.random import below, next_random

# ---- the oracle ----


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
        self.episodes = [Episode()]

    @property
    def lowest(self) -> int:
        return max(0, self.next_ticket - self.capacity)

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
        self.episodes = [e for e in self.episodes[:-1] if e.rows[-1].ticket >= self.lowest] + self.episodes[-1:]
        return ticket

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

    def sampleable(self, stack: int, n_step: int) -> dict[int, tuple[Episode, int]]:
        """By index: the episode and the place in it of each transition that may be drawn."""
        found = {}
        for number, lane in enumerate(self.lanes):
            for episode in lane.episodes:
                for place, row in enumerate(episode.rows):
                    if self._may_be_drawn(lane, episode, place, stack, n_step):
                        found[row.ticket * len(self.lanes) + number] = (episode, place)
        return found

    def _may_be_drawn(self, lane: Lane, episode: Episode, place: int, stack: int, n_step: int) -> bool:
        rows = episode.rows
        if rows[max(0, place - stack + 1)].ticket < lane.lowest:
            return False
        if self.spec.next_obs:
            return True
        if place + n_step >= len(rows) and episode.ended:
            return True
        return place + n_step < len(rows)

    def check(self, batch, stack=1, n_step=1, gamma=0.99, pad="repeat", allowed=None) -> list[int]:
        """Compares every row of a batch, bit for bit; returns their indices."""
        allowed = allowed or self.sampleable(stack, n_step)
        for i, index in enumerate(batch.index.tolist()):
            assert index in allowed, f"row {i}: {index} may not be drawn"
            self._check_row(batch, i, *allowed[index], stack, n_step, gamma, pad)
        return batch.index.tolist()

    def _check_row(self, batch, i, episode, place, stack, n_step, gamma, pad) -> None:
        row = episode.rows[place]
        window = [row] if self.spec.next_obs else episode.rows[place : place + n_step]
        total, discount = 0.0, 1.0
        for one in window:
            total += discount * float(np.float32(one.reward))
            discount *= gamma
        ending = window[-1]
        same(batch.action[i], row.action)
        assert batch.reward[i] == np.float32(total)
        assert batch.discount[i] == np.float32(0.0 if ending.terminated else discount)
        assert bool(batch.terminated[i]) == ending.terminated
        assert bool(batch.truncated[i]) == ending.truncated
        assert batch.weight[i] == 1
        assert batch.policy_version[i] == row.policy_version % 2**32
        for name in self.spec.extras:
            same(batch.extras[name][i], row.extras[name])
        assert batch.valid[i].tolist() == [place - back >= 0 for back in reversed(range(stack))]
        after = place + len(window)
        for name in self.spec.obs_fields:
            frames = [frame[name] if name else frame for frame in episode.frames()]
            same(part(batch.obs, name)[i], stacked(frames, place, stack, pad))
            if self.spec.next_obs:
                same(part(batch.next_obs, name)[i], part(row.extras["next_obs"], name))
            elif after < len(frames):
                same(part(batch.next_obs, name)[i], stacked(frames, after, stack, pad))
            else:
                assert ending.terminated  # what follows is unspecified


def part(value, name):
    return value[name] if name else value


def stacked(frames, place, stack, pad):
    if stack == 1:
        return frames[place]
    zero = np.zeros_like(np.asarray(frames[0]))
    places = range(place - stack + 1, place + 1)
    return np.stack([frames[max(p, 0)] if p >= 0 or pad == "repeat" else zero for p in places])


def same(got, expected) -> None:
    assert np.array_equal(got, expected), f"expected {expected}, got {got}"


def fill(replay: ReplayBuffer, model: Model, rng: np.random.Generator, rows: list[int], end: float = 0.15) -> None:
    """Writes rows[lane] random transitions to each lane, in episodes that end in every way, with seams."""
    for lane, count in enumerate(rows):
        writer = replay.writer(lane)
        for _ in range(count):
            row = random_row(replay.spec, rng, end)
            version = int(rng.integers(2**33))
            writer.policy_version = version
            ticket = writer.add(**row)
            assert ticket == model.add(lane, version=version, **row)
            if rng.random() < 0.05:
                writer.close()
                writer = replay.writer(lane)
                model.lanes[lane].seam()
        writer.close()


def random_value(rng: np.random.Generator, one: Field) -> np.ndarray:
    if np.dtype(one.dtype).kind == "f":
        return rng.normal(size=one.shape).astype(one.dtype)[()]
    if one.dtype == "bool":
        return (rng.random(one.shape) < 0.5)[()] if one.shape else np.bool_(rng.random() < 0.5)
    return rng.integers(0, 100, one.shape).astype(one.dtype)


def random_obs(rng, spec):
    values = {name: random_value(rng, one) for name, one in spec.obs_fields.items()}
    return values if isinstance(spec.obs, dict) else values[""]


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


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def cases() -> list[tuple[str, int, int, str]]:
    found = []
    for name, spec in SPECS.items():
        for stack, n_step in [(1, 1)] if spec.next_obs else [(1, 1), (4, 1), (1, 3), (3, 2), (5, 7)]:
            for pad in ("repeat", "zero") if stack > 1 else ("repeat",):
                found.append((name, stack, n_step, pad))
    return found


@pytest.mark.parametrize(("name", "stack", "n_step", "pad"), cases())
def test_every_row_that_may_be_drawn_is_drawn_and_is_as_the_oracle_says(name, stack, n_step, pad, rng):
    spec = SPECS[name]
    with ReplayBuffer.create(spec, 3 * 30, lanes=3) as replay:
        model = Model(spec, 3, 30)
        fill(replay, model, rng, [100, 17, 31])
        assert len(replay) == len(model)
        sampler = replay.sampler(64, stack=stack, n_step=n_step, gamma=0.9, pad=pad, seed=3, min_size=1)
        allowed = model.sampleable(stack, n_step)
        seen: set[int] = set()
        for _ in range(15 * len(allowed) // 64 + 1):
            seen.update(model.check(sampler.sample(), stack, n_step, 0.9, pad, allowed))
        assert seen == set(allowed)


def test_where_hardly_any_row_may_be_drawn_batches_are_right_too(rng):
    """Chance draws fail here, and the sampler lists the rows; what it had filled before must stay as it was."""
    spec = SPECS["vector"]
    with ReplayBuffer.create(spec, 2000) as replay, replay.writer() as writer:
        model = Model(spec, 1, 2000)
        for i in range(1500):
            row = random_row(spec, rng, 0.0)
            row["terminated"] = i == 2
            writer.add(**row)
            model.add(0, **row)
        allowed = model.sampleable(1, 1800)
        assert set(allowed) == {0, 1, 2}
        for seed in range(20):
            sampler = replay.sampler(4, n_step=1800, seed=seed)
            for _ in range(2):
                model.check(sampler.sample(), 1, 1800, allowed=allowed)


# ---- the generator ----

MASK = 2**64 - 1


def xoshiro256plusplus(state: list[int]) -> int:
    """Blackman and Vigna's reference, in Python's integers."""

    def rotl(x, k):
        return ((x << k) | (x >> (64 - k))) & MASK

    result = (rotl((state[0] + state[3]) & MASK, 23) + state[0]) & MASK
    t = (state[1] << 17) & MASK
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= t
    state[3] = rotl(state[3], 45)
    return result


@pytest.mark.parametrize("seed", [[1, 2, 3, 4], [MASK] * 4, [0, 0, 0, 1], [2**63, 5, MASK, 77]])
def test_the_generator_is_xoshiro256plusplus(seed):
    state, reference = np.array(seed, np.uint64), list(seed)
    for _ in range(1000):
        assert int(next_random(state)) == xoshiro256plusplus(reference)
    assert state.tolist() == reference


def test_the_generators_first_numbers_are_those_of_the_published_code():
    """From xoshiro256plusplus.c with the state 1, 2, 3, 4, as other implementations' tests list them."""
    state = np.array([1, 2, 3, 4], np.uint64)
    assert [int(next_random(state)) for _ in range(4)] == [
        41943041,
        58720359,
        3588806011781223,
        3591011842654386,
    ]


def chi_square_limit(bins: int) -> float:
    """Five standard deviations above the mean of chi-square; with a fixed seed the outcome never changes."""
    return bins - 1 + 5 * (2 * (bins - 1)) ** 0.5


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 64, 100, 3 * 2**30])
def test_below_is_uniform(bound):
    state = np.array([1, 2, 3, 4], np.uint64)
    draws = np.array([below(state, bound) for _ in range(30_000)])
    assert draws.min() >= 0
    assert draws.max() < bound
    bins = min(bound, 100)
    counts = np.bincount(draws * bins // bound, minlength=bins)
    expected = len(draws) / bins
    assert ((counts - expected) ** 2 / expected).sum() <= chi_square_limit(bins)


def test_below_throws_away_what_would_make_it_uneven():
    """For 3 * 2^30 a quarter of all draws: without that, one number in three comes twice as often."""
    state = np.array([1, 2, 3, 4], np.uint64)
    draws = np.array([below(state, 3 * 2**30) for _ in range(30_000)])
    counts = np.bincount(draws % 3, minlength=3)
    assert ((counts - 10_000) ** 2 / 10_000).sum() <= chi_square_limit(3)


# ---- the compiled kernels ----

CACHED = """
    import json, sys
    import numpy as np
    from marlcore import ReplayBuffer
    from marlcore.kernels import uniform
    replay = ReplayBuffer.attach(sys.argv[1])
    batch = replay.sampler(16, stack=2, n_step=2, seed=5).sample()
    hits = {name: sum(getattr(uniform, name).stats.cache_hits.values()) for name in ("draw", "draw_listed")}
    misses = sum(sum(getattr(uniform, name).stats.cache_misses.values()) for name in ("draw", "draw_listed"))
    print(json.dumps([batch.index.tolist(), batch.obs.tolist(), batch.reward.tolist(), hits, misses]))
"""


def test_kernels_load_from_the_cache_and_work_in_another_process(program, rng):
    spec = SPECS["vector"]
    with ReplayBuffer.create(spec, 50) as replay:
        fill(replay, Model(spec, 1, 50), rng, [40])
        here = replay.sampler(16, stack=2, n_step=2, seed=5).sample()
        for _ in range(2):
            there = json.loads(program(CACHED, args=[replay.handle.path]).finish())
            assert there[:3] == [here.index.tolist(), here.obs.tolist(), here.reward.tolist()]
            assert there[3:] == [{"draw": 1, "draw_listed": 0}, 0]
        del here
