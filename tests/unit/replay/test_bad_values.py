"""Writers refuse every value that does not fit, name its field, and write nothing."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mapped import Mapped
from model import column

from marlcore import Field, ReplayBuffer, TransitionSpec

SPEC = TransitionSpec(
    {"frame": Field((20, 20), "uint8"), "state": Field((3,)), "id": Field((), "int8")},
    Field((), "int64"),
    {"log_prob": Field(), "big": Field((70,)), "flag": Field((), "bool")},
)
ROWS = 4
Shape = Callable[..., tuple[int, ...]]


def observation(rows: int = 0, **changes: Any) -> dict[str, Any]:
    one = {"frame": np.zeros((20, 20), np.uint8), "state": np.zeros(3, np.float32), "id": 1}
    return (column([one] * rows) if rows else one) | changes


def transition(rows: int = 0, **changes: Any) -> dict[str, Any]:
    """Returns the arguments of an add of one row, or of `rows` rows; a change to `...` leaves the field out."""
    one = {"action": 1, "reward": 1.0, "log_prob": 0.5, "big": np.zeros(70, np.float32), "flag": True}
    values = {"obs": observation(rows), **(column([one] * rows) if rows else one)} | changes
    return {name: value for name, value in values.items() if value is not ...}


def with_fault(rows: int, field: str, value: Any) -> dict[str, Any]:
    value = np.array([value] * rows) if rows else value
    fault = {field: value}
    return transition(rows, **({"obs": observation(rows, **fault)} if field in SPEC.obs else fault))


FAULTS: list[tuple[str, Any, type[Exception], Callable[[Shape], str]]] = [
    ("frame", np.zeros((20, 21), np.uint8), ValueError, lambda s: f"expected uint8 {s(20, 20)}, got shape {s(20, 21)}"),
    ("frame", np.full((20, 20), 256), ValueError, lambda s: "expected values in uint8's range, got 256 to 256"),
    ("frame", np.zeros((20, 20)), TypeError, lambda s: f"expected uint8 {s(20, 20)}, got dtype float64"),
    ("frame", 0, ValueError, lambda s: f"expected uint8 {s(20, 20)}, got shape {s()}"),
    ("state", np.zeros(4), ValueError, lambda s: f"expected float32 {s(3)}, got shape {s(4)}"),
    ("state", 0.0, ValueError, lambda s: f"expected float32 {s(3)}, got shape {s()}"),
    ("state", np.zeros(3, complex), TypeError, lambda s: f"expected float32 {s(3)}, got dtype complex128"),
    ("state", ["a", "b", "c"], TypeError, lambda s: f"expected float32 {s(3)}, got dtype <U1"),
    ("state", [0, -1e39, 0], ValueError, lambda s: "expected values in float32's range, got -1e+39"),
    ("id", 128, ValueError, lambda s: "expected values in int8's range, got 128 to 128"),
    ("id", [1], ValueError, lambda s: f"expected int8 {s()}, got shape {s(1)}"),
    ("id", 1.0, TypeError, lambda s: f"expected int8 {s()}, got dtype float64"),
    ("action", np.zeros(1, int), ValueError, lambda s: f"expected int64 {s()}, got shape {s(1)}"),
    ("action", 2**63, ValueError, lambda s: "expected values in int64's range"),
    ("action", 1.5, TypeError, lambda s: f"expected int64 {s()}, got dtype float64"),
    ("action", "north", TypeError, lambda s: f"expected int64 {s()}, got dtype <U5"),
    ("action", None, TypeError, lambda s: f"expected int64 {s()}, got dtype object"),
    ("reward", math.nan, ValueError, lambda s: "expected a finite number, got NaN or infinity"),
    ("reward", -math.inf, ValueError, lambda s: "expected a finite number, got NaN or infinity"),
    ("log_prob", 1e39, ValueError, lambda s: "expected values in float32's range, got 1e+39"),
    ("log_prob", "low", TypeError, lambda s: f"expected float32 {s()}, got dtype <U3"),
    ("big", np.zeros(71), ValueError, lambda s: f"expected float32 {s(70)}, got shape {s(71)}"),
    ("flag", 2, ValueError, lambda s: f"expected bool {s()}, or 0 and 1, got 2"),
    ("flag", "on", TypeError, lambda s: f"expected bool {s()}, got dtype <U2"),
]

OBS = "obs: expected the fields ['frame', 'id', 'state'], got"
EXTRAS = "extras: expected the fields ['big', 'flag', 'log_prob'], got ['log_prob', 'big'"
FINAL = "final_obs: expected the observation after a truncated transition, got None"
FINALS = "final_obs: expected one observation for each truncated row, got None"
LENGTH = "reward: expected an array of shape (T,) with T of at least 1, got"
ROOM = "reward: expected at most the lane's 10 rows, final_obs included, got 11"
LANES = "lanes: expected different lanes of (0, 1, 2, 3), got"
HALF_DONE = np.array([False, True, False, True])

ROW = [
    ({"obs": observation(state=[1.0, [2.0], 3.0])}, ValueError, "obs['state']: expected float32 (3,), got "),
    ({"obs": observation(extra=1)}, ValueError, f"{OBS} ['frame', 'state', 'id', 'extra']"),
    ({"obs": {"state": np.zeros(3)}}, ValueError, f"{OBS} ['state']"),
    ({"obs": {1: 2, "a": 3}}, ValueError, f"{OBS} [1, 'a']"),
    ({"obs": np.zeros((20, 20))}, ValueError, f"{OBS} array("),
    ({"reward": 1e39}, ValueError, "reward: expected values in float32's range, got 1e+39"),
    ({"reward": None}, TypeError, "reward: expected a number, got None"),
    ({"reward": "1"}, TypeError, "reward: expected a number, got '1'"),
    ({"reward": np.zeros((9, 9))}, TypeError, "reward: expected a number, got array("),
    ({"reward": 1j}, TypeError, "reward: expected a number, got 1j"),
    ({"terminated": 2}, TypeError, "terminated: expected a bool, got 2"),
    ({"terminated": None}, TypeError, "terminated: expected a bool, got None"),
    ({"terminated": [1]}, TypeError, "terminated: expected a bool, got [1]"),
    ({"truncated": np.zeros((5, 5))}, TypeError, "truncated: expected a bool, got array("),
    ({"truncated": True}, ValueError, FINAL),
    ({"terminated": True, "truncated": True}, ValueError, FINAL),
    ({"final_obs": observation()}, ValueError, "final_obs: expected None unless terminated or truncated"),
    ({"truncated": True, "final_obs": observation(state=[1])}, ValueError,
        "final_obs['state']: expected float32 (3,), got shape (1,)"),
    ({"terminated": True, "final_obs": 3}, ValueError, f"final_{OBS} 3"),
    ({"entropy": 1.0}, ValueError, f"{EXTRAS}, 'flag', 'ent"),
]  # fmt: skip
MANY = [
    ({"reward": np.ones((ROWS, 1))}, ValueError, "reward: expected float32 (4,), got shape (4, 1)"),
    ({"reward": ["a"] * ROWS}, TypeError, "reward: expected float32 (4,), got dtype <U1"),
    ({"reward": [0.0, 1.0, math.nan, 0.0]}, ValueError, "reward: expected a finite number"),
    ({"reward": np.array([0.0, 1e39, 0.0, 0.0])}, ValueError, "reward: expected values in float32's range, got 1e+39"),
    ({"action": np.ones((ROWS, 2), int)}, ValueError, "action: expected int64 (4,), got shape (4, 2)"),
    ({"terminated": True}, ValueError, "terminated: expected bool (4,), got shape ()"),
    ({"terminated": [0, 0, 2, 0]}, ValueError, "terminated: expected bool (4,), or 0 and 1, got 2"),
    ({"terminated": [0, 0, math.nan, 0]}, ValueError, "terminated: expected bool (4,), or 0 and 1, got nan"),
    ({"truncated": np.ones(3, bool)}, ValueError, "truncated: expected bool (4,), got shape (3,)"),
    ({"terminated": HALF_DONE, "truncated": True}, ValueError, "truncated: expected bool (4,), got shape ()"),
    ({"truncated": HALF_DONE}, ValueError, FINALS),
    ({"entropy": np.zeros(ROWS)}, ValueError, f"{EXTRAS}, 'flag', 'ent"),
]
BATCH = [
    *(({"reward": value}, ValueError, f"{LENGTH} {value!r}") for value in ([], 1.0, None)),
    ({"reward": np.ones(3)}, ValueError, "obs['frame']: expected uint8 (3, 20, 20), got shape (4, 20, 20)"),
    ({"truncated": HALF_DONE, "final_obs": observation(3)}, ValueError,
        "final_obs['frame']: expected uint8 (2, 20, 20), got shape (3, 20, 20)"),
    ({"final_obs": observation(1)}, ValueError, "final_obs: expected None unless rows are truncated"),
    ({"final_obs": {"frame": [[1], [2, 3]], "code": []}}, ValueError, "final_obs: expected None unless rows are"),
    (transition(11), ValueError, ROOM),
    (transition(10, truncated=np.arange(10) == 3, final_obs=observation(1)), ValueError, ROOM),
]  # fmt: skip
VECTOR = [
    ({"reward": 0.0}, ValueError, "reward: expected float32 (4,), got shape ()"),
    ({"reward": np.ones(3)}, ValueError, "reward: expected float32 (4,), got shape (3,)"),
    ({"truncated": HALF_DONE, "final_obs": observation(1)}, ValueError,
        "final_obs['frame']: expected uint8 (4, 20, 20), got shape (1, 20, 20)"),
    *(
        ({"lanes": lanes}, ValueError, f"{LANES} {lanes}"[:70])
        for lanes in ([0, 1, 2, 4], [0, 1, 2, -1], [0, 1, 2, 2**63 - 1], [0, 1, 2, 2], [0, 1, 2, 3, 0])
    ),
    ({"lanes": [2**63]}, ValueError, "lanes: expected values in int64's range"),
    ({"lanes": []}, ValueError, "lanes: expected int64 (1,), got shape (0,)"),
    ({"lanes": np.array([], int)}, ValueError, f"{LANES} array([]"),
    ({"lanes": 1}, ValueError, "lanes: expected int64 (1,), got shape ()"),
    ({"lanes": [0.0, 1.0, 2.0, 3.0]}, TypeError, "lanes: expected int64 (4,), got dtype float64"),
    ({"lanes": [True, False]}, TypeError, "lanes: expected lane numbers, got the mask [True, False]"),
    ({"lanes": [0, 1]}, ValueError, "reward: expected float32 (2,), got shape (4,)"),
]  # fmt: skip


def label(field: str) -> str:
    return f"obs[{field!r}]" if field in SPEC.obs else field


def cases(door: str) -> list[tuple[str, dict[str, Any], type[Exception]]]:
    """Returns for each bad add its message, its arguments and its error."""
    rows, tables = {"add": (0, (ROW,)), "add_batch": (ROWS, (MANY, BATCH)), "vector": (ROWS, (MANY, VECTOR))}[door]
    faults = [
        (f"{label(field)}: {says(lambda *s: (rows, *s) if rows else s)}", with_fault(rows, field, value), error)
        for field, value, error, says in FAULTS
    ]
    both = [({"obs": None}, ValueError, f"{OBS} None"), ({"flag": ...}, ValueError, f"{EXTRAS}]")]
    return faults + [
        (says, transition(rows, **changes), error) for table in (*tables, both) for changes, error, says in table
    ]


@pytest.mark.parametrize("door", ["add", "add_batch", "vector"])
def test_a_bad_value_is_refused_by_name_and_changes_nothing(door, subtests):
    """The error is one line that begins with the field's name; later adds work as if the bad one had not come."""
    lanes = ROWS if door == "vector" else 1
    with (
        ReplayBuffer.create(SPEC, 10 * lanes, lanes) as replay,
        replay.vector_writer() if door == "vector" else replay.writer() as writer,
    ):
        add, good = (writer.add_batch, 1) if door == "add_batch" else (writer.add, lanes if lanes > 1 else 0)
        sampler, mapped = replay.sampler(8 * lanes, min_size=1, seed=0), Mapped(replay)
        add(**transition(good))
        for added, (says, arguments, error) in enumerate(cases(door), 2):
            with subtests.test(says):
                memory = mapped.body.tobytes()
                with pytest.raises(error) as raised:
                    add(**arguments)
                text = str(raised.value)
                assert text.startswith(says) and "\n" not in text and len(text) < 500
                assert mapped.body.tobytes() == memory
                add(**transition(good))
                batch = sampler.sample()
                assert [mapped.committed(lane) for lane in range(lanes)] == [added] * lanes
                assert not (batch.terminated | batch.truncated).any()
                assert (batch.obs["id"] == 1).all() and (batch.action == 1).all()


def test_the_version_of_weights_is_any_integer():
    with ReplayBuffer.create(SPEC, 10) as replay, replay.writer() as writer:
        for version in (np.int32(-1), np.uint8(3), np.array(4)):
            writer.policy_version = version
            assert writer.policy_version == int(version) % 2**32
        for bad in (1.5, "a", None):
            with pytest.raises(TypeError, match=f"^policy_version: expected an integer, got {bad!r}$"):
                writer.policy_version = bad
        assert writer.policy_version == 4
