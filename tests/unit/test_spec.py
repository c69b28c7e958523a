"""Fields and specs: checked once, when they are made."""

from __future__ import annotations

import json
import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from refused import Refused, refusals

from marlcore import Field, Ragged, ReplayBuffer, TransitionSpec
from marlcore.observations import each
from marlcore.transitions import HEAD_BYTES, RecordLayout
from marlcore.transitions.layout import INLINE_BYTES

OBS, ACTION, STATE = Field((4,)), Field((), "int64"), Field((2,), every=4)


def test_a_field_is_a_float32_scalar_unless_told_otherwise():
    assert Field() == Field((), "float32") and Field().nbytes == 4
    assert Field((), every=2**23).every == 2**23  # the longest: after 2^24 rows the count continues at a multiple of it
    assert Field(3).shape == (3,)
    assert Field([2, np.int64(3)]).shape == (2, 3) and Field([2, np.int64(3)]).nbytes == 24
    assert {Field((), dtype).dtype for dtype in ("uint8", np.uint8, np.dtype("uint8"))} == {"uint8"}


@pytest.mark.parametrize(
    "spec",
    [
        TransitionSpec(OBS, ACTION),
        TransitionSpec({"image": Field((84, 84), "uint8"), "goal": Field((2,))}, ACTION, next_obs=True),
        TransitionSpec(OBS, Field((2, 2), "complex128"), {"log_prob": Field(), "state": Field((512,))}),
    ],
)
def test_a_spec_survives_json_and_pickle(spec):
    assert TransitionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_the_order_of_fields_changes_no_layout():
    extras = {"x": Field(), "y": Field()}
    one = TransitionSpec({"a": OBS, "b": OBS}, ACTION, extras)
    del extras["y"]  # a spec has its own copy
    two = TransitionSpec({"b": OBS, "a": OBS}, ACTION, {"y": Field(), "x": Field()})
    assert one == two
    assert RecordLayout.of(one) == RecordLayout.of(two)


def test_small_fields_lie_aligned_and_apart_behind_the_head():
    spec = TransitionSpec(
        {"a": Field((3,), "uint8"), "b": Field((5,), "float64"), "c": Field((1,), "int16")},
        Field((), "bool"),
        {"x": Field((), "complex128"), "y": Field((7,), "float16")},
    )
    layout = RecordLayout.of(spec)
    assert layout.columns == (layout.record_bytes,)
    assert layout.record_bytes % 8 == 0
    taken = np.zeros(layout.record_bytes, int)
    taken[:HEAD_BYTES] = 1
    for place in layout.places:
        assert place.offset % min(np.dtype(place.field.dtype).itemsize, 8) == 0
        taken[place.offset : place.offset + place.field.nbytes] += 1
    assert taken.max() == 1


def test_a_field_larger_than_the_limit_has_a_column_of_its_own():
    spec = TransitionSpec(Field((INLINE_BYTES,), "uint8"), ACTION, {"big": Field((INLINE_BYTES + 1,), "uint8")})
    layout = RecordLayout.of(spec)
    assert {place.name: place.column for place in layout.places} == {"observation": 0, "action": 0, "big": 1}
    assert layout.columns[1] == INLINE_BYTES + 1


BOX = spaces.Box(0, 255, (84, 84), np.uint8)


@pytest.mark.parametrize(
    ("space", "field"),
    [
        (BOX, Field((84, 84), "uint8")),
        (spaces.Box(-1, 1, (), np.float64), Field((), "float64")),
        (spaces.Discrete(4, start=-1), Field((), "int64")),
        (spaces.MultiDiscrete([2, 3]), Field((2,), "int64")),
        (spaces.MultiBinary([2, 2]), Field((2, 2), "int8")),
    ],
    ids=str,
)
def test_a_space_becomes_a_field_that_holds_its_samples(space, field):
    spec = TransitionSpec.from_spaces(space, space)
    assert spec == TransitionSpec(obs=field, action=field)
    sample = np.asarray(space.sample())
    assert sample.shape == spec.action.shape and sample.dtype == spec.action.dtype


def test_a_dict_space_becomes_a_dict_of_fields():
    observation = spaces.Dict({"image": BOX, "goal": spaces.Dict({"x.y": spaces.Discrete(3)})})
    spec = TransitionSpec.from_spaces(observation, spaces.Dict(a=spaces.Discrete(2)), next_obs=True, log_prob=Field())
    fields = {"image": Field((84, 84), "uint8"), "goal": {"x.y": Field((), "int64")}}
    assert spec == TransitionSpec(fields, {"a": Field((), "int64")}, {"log_prob": Field()}, next_obs=True)


def spec(**arguments):
    return partial(TransitionSpec, **{"obs": OBS, "action": ACTION} | arguments)


def in_dicts(levels):
    return {"x": in_dicts(levels - 1)} if levels else OBS


def spaced(observation, action):
    return partial(TransitionSpec.from_spaces, observation, action)


RAGGED = Ragged("n", 3, {"a": Field((), "uint8"), "b": OBS})


def padded(**arrays):
    return partial(RAGGED.pad, **arrays)


TWO = spaces.Discrete(2)
HUGE, EVERY = ((2**63,), (2**31, 2**31), (10**30, 1)), (0, -4, 2.0, True, 2**23 + 1)
SHAPES = ((0,), (-1, 2), (2.5,), "ab", (True,), True, None, 1.0)
DTYPES = ("object", "U4", "S4", "datetime64[s]", ">f4", "no_such_type", "f4,f4", ",nt16")
KINDS = "expected a Box, Discrete, MultiDiscrete"

REFUSED: dict[str, Refused] = {
    **{f"shape {n!r}": (partial(Field, n), "Field shape: expected a tuple of positive integers, ") for n in SHAPES},
    **{f"shape {n!r}": (partial(Field, n), "expected an array of at most 140737488355328 ") for n in HUGE},
    "70 axes": (partial(Field, (1,) * 70), "Field shape: expected at most 24 axes, got 70"),
    **{f"every {n!r}": (partial(Field, every=n), f"an integer from 1 to 8388608, got {n!r}") for n in EVERY},
    **{f"dtype {n}": (partial(Field, (), n), TypeError, "Field dtype: expected ") for n in DTYPES},
    "no obs": (spec(obs={}), "TransitionSpec obs: expected at least one Field"),
    "obs": (spec(obs=(4,)), TypeError, "TransitionSpec obs: expected a Field or a dict"),
    "obs ''": (spec(obs={"": OBS}), "TransitionSpec obs: expected names of at least one character, got ''"),
    "obs 1": (spec(obs={1: OBS}), "TransitionSpec obs: expected names of at least one character, got 1"),
    "one path": (spec(obs={"a": {"b": OBS}, "a.b": OBS}), "obs: expected one field with the path 'a.b', got two"),
    "an empty part": (spec(action={"a": {}}), "TransitionSpec action['a']: expected at least one Field, got an empty"),
    "17 levels": (spec(extras={"x": in_dicts(16)}), "expected at most 16 levels of dicts, got more"),
    "rewards of integers": (spec(reward=Field((2,), "int64")), "reward: expected float32 () or (n,), got int64 (2,)"),
    "a matrix as reward": (spec(reward=Field((2, 3))), "reward: expected float32 () or (n,), got float32 (2, 3)"),
    "a shape as reward": (spec(reward=(3,)), TypeError, "TransitionSpec reward: expected a Field, got (3,)"),
    "a part": (spec(obs={"a": "float32"}), TypeError, "TransitionSpec obs['a']: expected a Field"),
    "obs at intervals": (spec(obs=STATE), "TransitionSpec obs: expected every=1, got every=4"),
    "a part at intervals": (spec(obs={"h": STATE}), "TransitionSpec obs.h: expected every=1, got every=4"),
    "action at intervals": (spec(action=STATE), "TransitionSpec action: expected every=1, got every=4"),
    "two intervals": (spec(extras={"h": STATE, "c": Field((), every=2)}), "one interval for all, got every=[2, 4]"),
    "next_obs and intervals": (spec(extras={"h": STATE}, next_obs=True), "extras: expected every=1, since"),
    "action": (spec(action="int64"), TypeError, "TransitionSpec action: expected a Field"),
    "extras": (spec(extras=[OBS]), TypeError, "TransitionSpec extras: expected a dict"),
    "an extra": (spec(extras={"x": 3}), TypeError, "TransitionSpec extras['x']: expected a Field"),
    "reward": (spec(extras={"reward": OBS}), "'reward' is the name of a built-in field"),
    "final_obs": (spec(extras={"final_obs": OBS}), "'final_obs' is the name of a built-in field"),
    "next_obs": (spec(next_obs=1), TypeError, "TransitionSpec next_obs: expected a bool"),
    "a Tuple": (spaced(spaces.Tuple([BOX]), TWO), f"observation_space: {KINDS}"),
    "a Text": (spaced(spaces.Text(3), TWO), f"observation_space: {KINDS}, MultiBinary or Dict space, got Text"),
    "a Text in Dicts": (spaced(BOX, spaces.Dict(a=spaces.Dict(b=spaces.Text(3)))), f"action_space['a']['b']: {KINDS}"),
    "no name": (partial(Ragged, "", 3, {"x": OBS}), "Ragged : expected names of at least one character, got ''"),
    "no maximum": (partial(Ragged, "n", 0, {"x": OBS}), "Ragged n most: expected an integer of at least 1"),
    "no parts": (partial(Ragged, "n", 3, {}), "Ragged n: expected Fields by names other than n, got {}"),
    "parts": (partial(Ragged, "n", 3, OBS), "Ragged n: expected Fields by names other than n, got Field("),
    "its own name": (partial(Ragged, "n", 3, {"n": OBS}), "expected Fields by names other than n, got {'n': "),
    "a ragged state": (partial(Ragged, "n", 3, {"h": STATE}), "Ragged n: expected Fields with every=1"),
    "too many": (padded(a=[1] * 4, b=[OBS] * 4), "n: expected arrays of one length up to 3, got [4]"),
    "two lengths": (padded(a=[1, 2], b=[]), "n: expected arrays of one length up to 3, got [0, 2]"),
    "a scalar": (padded(a=1, b=2), "n: expected arrays of one length up to 3, got [-1]"),
    "a part missing": (padded(a=[1]), "n: expected the fields ['a', 'b'], got ['a']"),
    "another range": (padded(a=[300], b=[[0] * 4]), "n a: expected values in uint8's range, got 300"),
    "another shape": (padded(a=[1], b=[[0] * 5]), "n b: expected float32 (1, 4), got shape (1, 5)"),
    "4 as a space": (spaced(BOX, 4), f"action_space: {KINDS}"),
}  # fmt: skip
test_refuses = refusals(REFUSED)


@pytest.mark.parametrize("in_obs", [False, True])
def test_ragged_rows_are_drawn_as_they_were_written(in_obs):
    """As extras of a row, and as parts of an observation, whose next observation is in the next row."""
    extras, obs = ({}, RAGGED.fields) if in_obs else (RAGGED.fields, {})
    spec = TransitionSpec({"x": Field(), **obs}, ACTION, extras)
    rows = [{"a": [*range(n)], "b": np.full((n, 4), n)} for n in (0, 3, 1, 2)]
    with ReplayBuffer.create(spec, capacity=100) as replay, replay.writer() as writer:
        for number in range(100):
            row = RAGGED.pad(**rows[number % 4])
            writer.add({"x": number, **(row if in_obs else {})}, 0, 0.0, **({} if in_obs else row))
        batch = replay.sampler(batch_size=64, seed=0).sample()
        drawn = [(batch.obs, batch.obs), (batch.next_obs, batch.next_obs)] if in_obs else [(batch.obs, batch.extras)]
        for at, fields in drawn:
            mask = RAGGED.mask(fields)
            assert mask.shape == (64, 3) and (RAGGED.mask(each(torch.from_numpy, fields)).numpy() == mask).all()
            for number, exists, a, b in zip(at["x"].astype(int), mask, fields["a"], fields["b"], strict=True):
                assert [*a[exists]] == rows[number % 4]["a"] and (b[exists] == rows[number % 4]["b"]).all()
                assert not a[~exists].any() and not b[~exists].any()


def test_an_environment_in_the_place_of_its_space_is_refused():
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"got an environment, .*; pass env\.observation_space$"):
        TransitionSpec.from_spaces(env, env.action_space)
    env.close()
