"""Refused arguments of replays, writers, samplers, mixtures, prefetches and limiters."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from refused import Refused, check_refused, each_bad, refusals

import marlcore as mc
from marlcore.memory import Segment

SCALAR = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"))
VECTOR = mc.TransitionSpec(mc.Field((3,)), mc.Field((), "int64"))
FLOATS = mc.TransitionSpec(mc.Field(), mc.Field())
NESTED, DOTTED = (mc.TransitionSpec(obs, mc.Field()) for obs in ({"a": {"b": mc.Field()}}, {"a.b": mc.Field()}))
NEXT_OBS = mc.TransitionSpec(mc.Field(), mc.Field(), next_obs=True)
STATE = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"), {"h": mc.Field((2,), every=4)})
GOALS = {name: mc.Field((3,)) for name in ("observation", "achieved_goal", "desired_goal")}


def create(**arguments: Any) -> mc.ReplayBuffer:
    return mc.ReplayBuffer.create(**{"spec": SCALAR, "capacity": 10} | arguments)


def on(call: Callable[[mc.ReplayBuffer], object], **arguments: Any) -> object:
    """Makes the call with a new replay of two lanes."""
    with create(**{"lanes": 2} | arguments) as replay:
        return call(replay)


def attach_another_kind() -> None:
    other = Segment.create("other", {"kind": "weights"}, 100)
    mc.ReplayBuffer.attach(other.handle)


def writer(name: str = "writer", **options: Any) -> object:
    return on(lambda replay: getattr(replay, name)(**options))


def add(door: str, value: Any, spec: Any = NEXT_OBS, **fields: Any) -> object:
    doors = {
        "add": lambda replay: replay.writer().add,
        "add_batch": lambda replay: replay.writer().add_batch,
        "vector": lambda replay: replay.vector_writer().add,
    }
    return on(lambda replay: doors[door](replay)(value, value, value, **fields), spec=spec)


def sampler(spec: Any = SCALAR, capacity: int = 10, replay_lanes: int = 2, **options: Any) -> object:
    return on(lambda r: r.sampler(**{"batch_size": 4} | options), spec=spec, capacity=capacity, lanes=replay_lanes)


def sequences(spec: Any = SCALAR, **options: Any) -> object:
    return sampler(spec, 12, 1, **options)


def initial(**extras: mc.Field) -> object:
    return sampler(mc.TransitionSpec(mc.Field(), mc.Field(), extras), prioritized=mc.Prioritized(initial="p"))


def hindsight(obs: Any = GOALS, next_obs: bool = False, **options: Any) -> object:
    chosen = {"hindsight": mc.Hindsight(compute_reward=len)} | options
    return sampler(mc.TransitionSpec(obs, mc.Field(), next_obs=next_obs), **chosen)


def mixture(fractions: Any = (0.5, 0.5), batch_size: Any = 8, **options: Any) -> object:
    return on(lambda replay: mc.Mixture([replay, replay], fractions, batch_size, **options))


def mixture_of(*others: Callable[[mc.ReplayBuffer], object]) -> object:
    return on(lambda replay: mc.Mixture([replay, *(other(replay) for other in others)], [0.5, 0.5], 8))


def read(verb: str, *arguments: Any, **options: Any) -> object:
    return on(lambda replay: getattr(replay, verb)(*arguments, **options))


def prefetch(**options: Any) -> object:
    return on(lambda replay: mc.Prefetch(replay.sampler(8), **options))


def limited(call: Callable[[mc.ReplayBuffer], object], **lead: float) -> object:
    return on(call, capacity=64, lanes=1, limiter=mc.RateLimiter(2.0, 4, 8.0, **lead))


def sample_by(share: float) -> object:
    def call(replay: mc.ReplayBuffer) -> object:
        sampler = replay.sampler(1)
        sampler.limit_to(lambda _: share)
        return sampler.sample()

    return limited(call)


def limiter(**options: Any) -> object:
    return mc.RateLimiter(**{"samples_per_insert": 1.0, "min_size": 1, "tolerance": 1.0} | options)


INTEGER = "an integer of at least 1"
SHARE = "a number from 0 to 1"
NUMBER, POSITIVE = "a finite number of at least 0", "a finite number above 0"
TIMEOUTS = [-1, -0.5, "1", math.nan]
NO_NUMBER = [0, -1.0, math.nan, math.inf, "2", None, True]
RANGES = [range(0), range(1, 3), range(-1, 2), range(0, 2, 2), range(3, 1), [0, 1], 1]
INITIAL = "prioritized.initial: expected the name of a float32 () extra, got 'p', which is"
WINDOW = "stack + n_step + sequence.length - 1: expected at most the 12 rows of a lane, got"
PERIOD = "sequence.period: expected a multiple of the 4 rows from one stored state to the next, got"
ROWS_OF_A_LANE = "stack + n_step: expected at most the 5 rows of a lane, got"
KEYS = "hindsight: expected achieved_goal and desired_goal of one shape and dtype in obs, got"
STEPS = "hindsight: expected single transitions with n_step=1, got"
FUNCTION = "expected a function of achieved goals, desired goals and info, or None, got 4"
TWO = np.zeros(2)

REPLAY: list[Refused] = [
    *each_bad(create, INTEGER, capacity=[0, -5, 10.0, True], lanes=[0, None]),
    (lambda: create(spec={"obs": 1}), TypeError, "spec: expected a TransitionSpec, got "),
    (lambda: create(capacity=1), ValueError, "capacity: expected at least 2, 2 rows a lane for a truncated"),
    (lambda: create(capacity=2**32), ValueError, "capacity: expected from 1 rows, one a lane, to 4294967295"),
    (lambda: create(capacity=3, lanes=4), ValueError, "capacity: expected from 4 rows, one a lane"),
    (lambda: create(name="a/b"), ValueError, "name: expected letters, digits, '_' and '.', got 'a/b'"),
    (lambda: create(capacity=2**32 - 1), mc.SharedMemoryFull, "/dev/shm: "),
    (lambda: create(limiter=2.0), TypeError, "limiter: expected a RateLimiter or None, got 2.0"),
    (lambda: create(capacity=5, lanes=2, limiter=limiter()), ValueError,
        "capacity: expected at least 6 for a limiter, 3 rows a lane, got 5"),
    (lambda: on(lambda replay: mc.ReplayBuffer.attach(replay.handle, VECTOR)), mc.LayoutMismatch,
        ": spec obs: expected float32 (), got float32 (3,)"),
    (lambda: on(lambda replay: mc.ReplayBuffer.attach(replay.handle, DOTTED), spec=NESTED), mc.LayoutMismatch,
        ": spec obs['a']['b']: expected float32 (), got none"),
    (attach_another_kind, mc.SegmentCorrupt, "expected a replay, got another kind of segment"),
    (lambda: mc.ReplayBuffer(SCALAR, 100), TypeError, "expected ReplayBuffer.create(...) or ReplayBuffer.attach"),  # type: ignore[arg-type]
    (lambda: mc.TrajectoryQueue(SCALAR), TypeError, "expected TrajectoryQueue.create(...)"),  # type: ignore[arg-type]
]  # fmt: skip
WRITERS: list[Refused] = [
    *each_bad(writer, "0 to 1", lane=[-1, 2, "0", None, 0.0, True]),
    *each_bad(partial(writer, "vector_writer"), "different numbers from 0 to 1",
        lanes=[[0, 2], [-1], [1, 1], [], ["a"], [False, True], 1]),
    *(row for name in ("writer", "vector_writer")
      for row in each_bad(partial(writer, name), "seconds of at least 0 or None", timeout=TIMEOUTS)),
    *((partial(add, door, value, **fields), ValueError, says)
      for door, value, true in (("add", 0.0, True), ("add_batch", TWO, TWO == 0), ("vector", TWO, TWO == 0))
      for fields, says in (
          ({"truncated": true, "final_obs": value, "next_obs": value}, "final_obs: expected None"),
          ({}, "extras: expected the fields ['next_obs'], got []"),
      )),
    *((partial(add, door, value, FLOATS, **fields), ValueError, f"expected the fields [], got {[*fields]}; {says}")
      for door, value in (("add", 0.0), ("add_batch", TWO), ("vector", TWO))
      for fields, says in (
          ({"next_obs": value}, "next_obs is read from the next row: give final_obs where an episode ends"),
          ({"done": value}, "give terminated or truncated instead of done"),
      )),
    (lambda: writer(shared=True), ValueError,
        "shared: expected False, since this spec's rows follow one another; use next_obs=True"),
]  # fmt: skip
SAMPLERS: list[Refused] = [
    *each_bad(sampler, INTEGER, batch_size=[0, 2.0], stack=[0, True], n_step=[-1], min_size=[0, "1"]),
    *each_bad(sampler, SHARE, gamma=[1.1, math.nan, "0.9"]),
    *each_bad(sampler, "a range within 0 to 1", lanes=RANGES),
    # NumPy's error names neither; a little less would end the process
    *((partial(sampler, batch_size=rows), ValueError, f" bytes of memory, got {rows}, which takes ")
      for rows in (2**40, 2**63, 2**70)),
    (lambda: sampler(stack=5), ValueError, f"{ROWS_OF_A_LANE} 5"),
    (lambda: sampler(n_step=5), ValueError, f"{ROWS_OF_A_LANE} 1"),
    (lambda: sampler(NEXT_OBS, stack=2), ValueError, "stack, n_step: expected 1 and 1"),
    (lambda: sampler(pad="edge"), ValueError, "pad: expected 'repeat' or 'zero', got 'edge'"),
    (lambda: sequences(sequence=mc.Sequence(12)), ValueError, f"{WINDOW} 1 + 1 + 11"),
    (lambda: sequences(sequence=mc.Sequence(8), stack=3, n_step=3), ValueError, f"{WINDOW} 3 + 3 + 7"),
    (lambda: sequences(STATE, sequence=mc.Sequence(6)), ValueError, f"{PERIOD} 6"),
    (lambda: sequences(STATE, sequence=mc.Sequence(8, 0, 2)), ValueError, f"{PERIOD} 2"),
    (lambda: sequences(NEXT_OBS, sequence=mc.Sequence(2)), ValueError, "sequence: expected None, since"),
    (lambda: sequences(sequence=5), TypeError, "sequence: expected a Sequence or None, got 5"),
    (lambda: sampler(SCALAR, 14, 1, sequence=mc.Sequence(8, 2), n_step=2), ValueError,
        "sequence: expected a lane of at least 15 rows, so that it always holds a whole window of 8 transitions"),
    *((partial(sampler, prioritized=mc.Prioritized(alpha, epsilon=epsilon)), ValueError,
       "prioritized: expected alpha and epsilon that give finite masses, got ")
      for alpha, epsilon in ((2.0, 1e200), (2000.0, 1.0))),
    (lambda: initial(), ValueError, f"{INITIAL} no extra"),
    (lambda: initial(p=mc.Field((), "float64")), ValueError, f"{INITIAL} float64 ()"),
    (lambda: initial(p=mc.Field((1,))), ValueError, f"{INITIAL} float32 (1,)"),
    (lambda: hindsight(hindsight=4), TypeError, "hindsight: expected a Hindsight or None, got 4"),
    (lambda: hindsight(hindsight=mc.Hindsight()), ValueError,
        "hindsight.compute_reward: expected a function, got None"),
    (lambda: hindsight(n_step=2), ValueError, f"{STEPS} n_step=2"),
    (lambda: hindsight(sequence=mc.Sequence(2), capacity=20), ValueError, f"{STEPS} a sequence"),
    (lambda: hindsight(next_obs=True), ValueError, "hindsight: expected None, since rows of a spec"),
    (lambda: hindsight(mc.Field()), ValueError, f"{KEYS} {{'observation': 'float32 ()'}}"),
    (lambda: hindsight({**GOALS, "desired_goal": mc.Field((2,))}), ValueError,
        f"{KEYS} {{'observation': 'float32 (3,)', 'achieved"),
    *((partial(limited, lambda r, n=n: r.sampler(1).limit_to(n)), ValueError, f"limit_to: expected {says}")
      for n, says in {0: "a number in (0, 1], got 0", 1.5: "a number in (0", 0.05: "at least batch_size / "}.items()),
    (lambda: sample_by(2.0), ValueError, "limit_to: expected a number in (0, 1], got 2"),
    (lambda: sample_by(1e-12), ValueError, "limit_to: expected at least batch_size / "),
    (lambda: on(lambda r: r.sampler(4).limit_to(0.5)), ValueError, "limit_to: expected a replay with a limiter"),
    (lambda: limited(lambda replay: replay.sampler(9)), ValueError,
        "tolerance: expected at least the batch_size 9, got a limiter with 8"),
    (lambda: limited(lambda replay: replay.sampler(8), lead=1.0), ValueError,
        "batch_size + samples_per_insert - lead = 9, or samplers and writers would both wait, got a limiter with 8"),
]  # fmt: skip
OPTIONS: list[Refused] = [
    *each_bad(mc.Prioritized, NUMBER, alpha=[-0.1, math.nan, math.inf], epsilon=[-1e-9, True]),
    *each_bad(mc.Prioritized, SHARE, beta=[-0.1, 1.5, "1"]),
    *each_bad(mc.Prioritized, INTEGER, beta_steps=[0, 1.5], beta_inserts=[0]),
    *each_bad(sampler, "'separate', 'shared' or None", layout=["apart"]),
    (lambda: sampler(prioritized=mc.Prioritized(beta_steps=3, beta_inserts=4)), "beta_inserts: expected None beside"),
    *each_bad(mc.Hindsight, "an integer from 1 to 2147483647", k=[0]),
    *each_bad(mc.Hindsight, "future, final or episode", strategy=["last"]),
    (lambda: mc.Hindsight(compute_reward=4), TypeError, f"compute_reward: {FUNCTION}"),
    (lambda: mc.Hindsight(compute_terminated=4), TypeError, f"compute_terminated: {FUNCTION}"),
    *((partial(mc.Sequence, *arguments), ValueError, f"sequence.{says}") for arguments, says in {
        (0,): f"length: expected {INTEGER}, got 0", (True,): f"length: expected {INTEGER}, got True",
        (4, -1): "burn_in: expected an integer of at least 0, got -1",
        (4, 4): "burn_in: expected less than the length 4, got 4",
        (4, 9): "burn_in: expected less than the length 4, got 9",
        (4, 0, 0): f"period: expected {INTEGER}, got 0", (4, 0, 2.0): f"period: expected {INTEGER}, got 2.0",
    }.items()),
    *each_bad(limiter, POSITIVE, samples_per_insert=NO_NUMBER, tolerance=NO_NUMBER),
    *each_bad(limiter, INTEGER, min_size=[0, -1, 1.5, "2", None, True]),
    (lambda: mc.RateLimiter(8, 10, 2), ValueError, "tolerance: expected at least samples_per_insert = 8, "),
]  # fmt: skip
MIXTURES: list[Refused] = [
    *((partial(mixture, n), ValueError, "fractions: expected numbers of at least 0 whose sum is 1, got")
      for n in ((0.5, 0.6), (1.5, -0.5), (math.nan, 1.0))),
    (lambda: mixture([1.0]), ValueError, "fractions: expected a number for each of 2 replays (1 or more), got"),
    (lambda: mixture([0.5, "x"]), TypeError, "fractions: expected numbers, got"),
    (lambda: mc.Mixture([], [], 8), ValueError, "fractions: expected a number for each of 0 replays (1 or more), got"),
    *each_bad(mixture, INTEGER, batch_size=[0], min_size=[None]),
    (lambda: mixture(prioritized=[None]), ValueError, "prioritized: expected an entry for each of 2 replays, got 1"),
    (lambda: mixture(lanes=[range(1)]), ValueError, "lanes: expected a range for each of 2 replays, got 1"),
    (lambda: on(lambda replay: mc.Mixture(replay, [1.0], 8)), TypeError,
        "replays: expected a list of ReplayBuffers, got <ReplayBuffer "),
    (lambda: mixture_of(lambda replay: replay.sampler(8)), TypeError,
        "replays[1]: expected a ReplayBuffer, got <Sampler "),
    (lambda: mixture_of(lambda _: mc.ReplayBuffer.create(VECTOR, 100)), mc.LayoutMismatch,
        "replays[1]: spec obs: expected float32 (), got float32 (3,)"),
]  # fmt: skip
PREFETCHES: list[Refused] = [
    *each_bad(prefetch, INTEGER, depth=[0, True, 1.5]),
    (lambda: on(mc.Prefetch), TypeError,
        "sampler: expected a sampler, such as replay.sampler(256), got <ReplayBuffer "),
]  # fmt: skip
READING: list[Refused] = [
    *((partial(read, *verb, **{name: bad}), ValueError, f"{name}: expected {says}, got {bad!r}")
      for verb in (("read", [0]), ("batches", 4), ("episodes",))
      for name, bad, says in (
          ("stack", 0, INTEGER), ("n_step", True, INTEGER), ("gamma", 2, SHARE), ("pad", "edge", "'repeat' or 'zero'"),
          ("lanes", range(1, 3), "a range within 0 to 1"), ("layout", "apart", "'separate', 'shared' or None"),
      )),
    *each_bad(partial(read, "batches"), INTEGER, batch_size=[0, 2.5, True]),
    *each_bad(partial(read, "read", []), "'raise' or 'skip'", missing=["drop"]),
    *((partial(read, "read", bad), ValueError, f"index: expected integers (n,), got {got}")
      for bad, got in ((4, "int64 ()"), ([0.5], "float64 (1,)"), ([[1]], "int64 (1, 1)"))),
    (lambda: read("batches", 2**40), ValueError, f" bytes of memory, got {2**40}, which takes "),
    (lambda: on(lambda replay: replay.episodes(), spec=NEXT_OBS), ValueError,
        "episodes: expected a spec without next_obs, since rows with it do not follow one another"),
]  # fmt: skip
test_refuses = refusals([*REPLAY, *WRITERS, *SAMPLERS, *OPTIONS, *MIXTURES, *PREFETCHES, *READING])


def test_refuses_devices():
    pytest.importorskip("torch")  # an extra of the core
    for row in each_bad(prefetch, "a cpu or a cuda device", device=["meta", "foo", None]):
        check_refused(*row)


def test_limits_of_the_options_are_allowed():
    assert mc.RateLimiter(8, 10, tolerance=8).tolerance == 8
    with mc.ReplayBuffer.create(SCALAR, 11, lanes=2) as replay:
        assert replay.capacity == 10  # whole lanes
        replay.sampler(4, stack=4)
        replay.sampler(4, n_step=4)
    with mc.ReplayBuffer.create(SCALAR, 15) as replay, replay.writer() as writer:
        sampler = replay.sampler(4, sequence=mc.Sequence(8, 2), n_step=2, min_size=1)
        for ticket in range(200):
            writer.add(float(ticket), ticket, 1.0)
            assert sampler.can_sample() or ticket < 9


def test_an_add_that_its_limiter_could_never_admit_is_refused():
    """So no batch and no add is ever larger than the tolerance."""
    rows = np.zeros(8)
    with mc.ReplayBuffer.create(SCALAR, 64, limiter=mc.RateLimiter(2.0, 4, 8.0)) as replay, replay.writer() as writer:
        says = "samples_per_insert * rows = 10 for an add of 5 rows, got a limiter with 8"
        check_refused(lambda: writer.add_batch(rows[:5], rows[:5].astype(int), rows[:5]), ValueError, says)
        assert len(replay) == 0
        assert writer.add_batch(rows[:4], rows[:4].astype(int), rows[:4]) == 0
        replay.sampler(8)
    with mc.ReplayBuffer.create(SCALAR, 8, limiter=mc.RateLimiter(1.0, 1, 100.0)) as replay, replay.writer() as writer:
        says = "reward: expected at most 7 of the lane's 8 rows, final_obs included, got 8"
        check_refused(lambda: writer.add_batch(rows, rows.astype(int), rows), ValueError, says)
        assert writer.add_batch(rows[:7], rows[:7].astype(int), rows[:7]) == 0
