"""What hosts put into rows: any names, nested dicts, rewards that are vectors, bfloat16, tensors, 0 and 1 as flags."""

import json
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mapped import Mapped
from refused import check_refused

import marlcore as mc
from marlcore import Field, ReplayBuffer, TransitionSpec, arrays
from marlcore.lazy import is_installed
from marlcore.memory import Segment
from marlcore.observations import each, leaves, nested

FRAME = Field((9, 31), "uint8")
NESTED = TransitionSpec(
    {"observation.state": Field((2,)), "camera": {"left": FRAME, "right": {"near": FRAME}}},
    {"move": Field((2,)), "grip": Field((), "bool")},
    {"info": {"x": Field(), "half": Field((3,), "bfloat16")}, "log prob": Field()},
    reward=Field((3,)),
)
ROWS = 12


def value_of(field: Field, number: int) -> np.ndarray:
    return np.full(field.shape, number % 2 if field.dtype == "bool" else number).astype(field.numpy)


def row_of(spec: TransitionSpec, number: int) -> dict[str, Any]:
    """The arguments of an add, all of whose values follow from a number."""
    roles = {"obs": spec.obs, "action": spec.action, "reward": spec.reward, **spec.extras}
    return {role: each(lambda field: value_of(field, number), form) for role, form in roles.items()}


def by_number(write: Callable[[mc.ReplayBuffer], None]) -> list[tuple[int, Any, Any]]:
    """Returns a batch's rows as (number, the batch, the row's place in it), after `write` wrote rows of `row_of`."""
    with ReplayBuffer.create(NESTED, 4 * ROWS, 2) as replay:
        write(replay)
        batch = replay.sampler(64, seed=0, min_size=1).sample()
        return [(int(batch.extras["info"]["x"][at]), batch, at) for at in range(64)]


def one_by_one(replay: mc.ReplayBuffer) -> None:
    with replay.writer() as writer:
        for number in range(ROWS):
            writer.add(**row_of(NESTED, number))


def together(replay: mc.ReplayBuffer) -> None:
    with replay.writer() as writer:
        rows = [row_of(NESTED, number) for number in range(ROWS)]
        writer.add_batch(**each(lambda *values: np.stack(values), *rows))


def to_lanes(replay: mc.ReplayBuffer) -> None:
    with replay.vector_writer() as writer:
        for number in range(ROWS):
            writer.add(**each(lambda value: np.stack([value, value]), row_of(NESTED, number)))


@pytest.mark.parametrize("write", [one_by_one, together, to_lanes])
def test_rows_come_back_in_the_form_of_their_spec(write):
    numbers = set()
    for number, batch, at in by_number(write):
        numbers.add(number)
        for role, form in row_of(NESTED, number).items():
            got = batch.extras[role] if role in NESTED.extras else getattr(batch, role)
            for path, value in leaves(form).items():
                assert leaves(got)[path].dtype == value.dtype
                np.testing.assert_array_equal(leaves(got)[path][at], value, f"{role} {path}")
        for path, value in leaves(row_of(NESTED, number + 1)["obs"]).items():
            np.testing.assert_array_equal(leaves(batch.next_obs)[path][at], value, path)
    assert numbers == set(range(ROWS - 1))


def test_each_batch_has_dicts_of_its_own():
    with ReplayBuffer.create(NESTED, ROWS) as replay:
        one_by_one(replay)
        sampler = replay.sampler(4)
        sampler.sample().obs["camera"]["mine"] = 1
        assert sampler.sample().obs["camera"].keys() == {"left", "right"}


def test_an_extra_may_be_called_self():
    spec = TransitionSpec(Field(), Field(), {"self": Field()})
    with ReplayBuffer.create(spec, 8, 2) as replay:
        with replay.writer(0) as writer, replay.vector_writer([1]) as vector:
            writer.add(0.0, 0.0, 0.0, self=5.0)
            for add in (writer.add_batch, vector.add):
                add([0.0], [0.0], [0.0], [True], self=[5.0])
        assert (replay.sampler(8, min_size=1).sample().extras["self"] == 5).all()


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("sequence", [None, mc.Sequence(4)])
def test_each_component_of_a_reward_has_its_return(n_step, sequence):
    """Each is what a spec of one number gives for this component, bit for bit."""
    rewards = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    batches = []
    for component in (slice(None), 0, 1, 2):
        reward = Field((3,)) if component == slice(None) else Field()
        with ReplayBuffer.create(TransitionSpec(Field(), Field(), reward=reward), 64) as replay:
            with replay.writer() as writer:
                for number, each_reward in enumerate(rewards):
                    writer.add(number, 0.0, each_reward[component], terminated=number % 7 == 6)
            sampler = replay.sampler(32, n_step=n_step, gamma=0.9, seed=3, sequence=sequence)
            batches.append(sampler.sample().reward.copy())
    whole, *single = batches
    np.testing.assert_array_equal(whole, np.stack(single, axis=-1))


def test_a_spec_survives_json_and_pickle_and_can_be_a_key():
    assert TransitionSpec.from_dict(json.loads(json.dumps(NESTED.to_dict()))) == NESTED
    again = pickle.loads(pickle.dumps(NESTED))
    assert again == NESTED and hash(again) == hash(NESTED) and {NESTED: 1}[again] == 1
    assert "reward" not in TransitionSpec(Field(), Field()).to_dict(), "what was written before stays readable"
    with ReplayBuffer.create(NESTED, 8) as replay, ReplayBuffer.attach(replay.handle, NESTED) as attached:
        assert attached.spec == NESTED
        other = TransitionSpec(NESTED.obs, NESTED.action, NESTED.extras)
        says = "spec reward: expected float32 (3,), got float32 ()"
        check_refused(partial(ReplayBuffer.attach, replay.handle, other), mc.LayoutMismatch, says)


def test_paths_lead_to_what_nested_dicts_hold():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e.f": 3}
    assert leaves(tree) == {"a.b": 1, "a.c.d": 2, "e.f": 3} and nested(leaves(tree), tree) == tree
    assert leaves(4) == {"observation": 4} and nested({"observation": 4}, None) == 4


@pytest.mark.parametrize("levels", [17, 400])
def test_a_description_that_nests_too_deep_is_refused(levels):
    with ReplayBuffer.create(TransitionSpec(Field(), Field()), 8) as replay:
        made = Mapped(replay).segment
        spec = {**made.description["spec"]}
        for _ in range(levels):
            spec["obs"] = {"x": spec["obs"]}
        bad = Segment.create("bad", made.description | {"spec": spec}, len(made.body))
        check_refused(lambda: ReplayBuffer(bad), mc.SegmentCorrupt, "expected a replay, got another kind of segment")


BFLOAT = TransitionSpec(Field((2,), "bfloat16"), Field((), "bfloat16"), {"large": Field((300,), "bfloat16")})


def test_bfloat16_is_stored_as_it_is_and_rounded_to():
    torch = pytest.importorskip("torch")
    assert Field((), torch.bfloat16) == Field((), ml_dtypes.bfloat16) == Field((), "bfloat16")
    exact = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    with ReplayBuffer.create(BFLOAT, 8) as replay, replay.writer() as writer:
        writer.add(exact, exact[0], 0.0, terminated=True, large=np.full(300, 1.2345, np.float32))
        batch = replay.sampler(1, min_size=1).sample()
        assert batch.obs.dtype == ml_dtypes.bfloat16 and batch.obs.tolist() == [[1.5, -3.0]]
        assert batch.extras["large"][0, 7] == np.float32(1.2345).astype(ml_dtypes.bfloat16)
        tensors = batch.torch()
        assert torch.equal(tensors.obs[0], exact) and tensors.obs.data_ptr() == batch.obs.ctypes.data
        for wrong in (1e39, np.float32(3.4e38)):
            with pytest.raises(ValueError, match=r"obs: expected values in bfloat16's range, got (3.39|1e.39)"):
                writer.add([0.0, wrong], 0.0, 0.0, large=np.zeros(300))


def test_recorded_episodes_hold_bfloat16_but_no_nan():
    spec = TransitionSpec(Field((2,), "bfloat16"), Field((), "bfloat16"))
    values = np.arange(1, 8).astype(ml_dtypes.bfloat16)
    episode = {"obs": np.stack([values, -values], 1), "action": values[:6], "reward": np.zeros(6), "truncated": True}
    for given in (spec, None):
        with ReplayBuffer.from_episodes([episode], spec=given) as replay:
            (batch,) = replay.episodes()
            assert replay.spec.obs == spec.obs and replay.spec.action == spec.action
            assert np.array_equal(batch.obs, episode["obs"][:6]) and np.array_equal(batch.action, values[:6])
            assert np.array_equal(batch.next_obs[-1], episode["obs"][6])
    for name in ("obs", "action"):
        wrong = episode[name].copy()
        wrong[-1] = np.nan
        bad = partial(ReplayBuffer.from_episodes, [episode | {name: wrong}], spec=spec)
        check_refused(bad, ValueError, "expected finite numbers, got nan")


def test_bfloat16_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    check_refused(partial(Field, (), "bfloat16"), ModuleNotFoundError, "needs ml_dtypes: pip install ml_dtypes")


def flags() -> dict[str, Any]:
    one = {"int": 1, "float": 1.0, "np.int64": np.int64(1), "0-d array": np.array(1), "0-d bool": np.array(True)}
    if not is_installed("train"):
        return one
    import torch

    return one | {"tensor": torch.tensor(True), "int tensor": torch.tensor(1), "float tensor": torch.tensor(1.0)}


@pytest.mark.parametrize("flag", flags().values(), ids=flags())
def test_zero_and_one_are_flags(flag):
    spec = TransitionSpec(Field(), Field(), {"done": Field((), "bool")})
    with ReplayBuffer.create(spec, 16, 2) as replay:
        with replay.writer(0) as writer, replay.vector_writer([1]) as vector:
            writer.add(0.0, 0.0, 0.0, flag, flag - flag if not hasattr(flag, "dtype") else 0, done=flag)
            writer.add_batch([1.0], [0.0], [0.0], np.array([flag]), done=np.array([flag]))
            vector.add([2.0], [0.0], [0.0], np.array([flag]), np.array([0]), done=np.array([flag]))
        batch = replay.sampler(64, min_size=1).sample()
        assert {*batch.obs.tolist()} == {0, 1, 2} and batch.terminated.all() and batch.extras["done"].all()
        assert not batch.truncated.any()


def test_a_tensor_that_requires_grad_is_detached_and_one_warning_tells(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(arrays, "_noticed", False)
    weight = torch.ones(2, requires_grad=True)
    with ReplayBuffer.create(TransitionSpec(Field((2,)), Field((2,))), 8, 2) as replay:
        with replay.writer() as writer, replay.vector_writer([1]) as vector:
            with pytest.warns(UserWarning, match="requires grad is stored without its graph"):
                writer.add(2 * weight, 3 * weight, 0.0, terminated=True)
            vector.add(weight[None] * 2, weight[None] * 3, weight.sum()[None], [True])
        batch = replay.sampler(8, min_size=1).sample()
        assert (batch.obs == 2).all() and (batch.action == 3).all() and weight.grad is None


@pytest.mark.parametrize("form", ["array", "tensor", "bfloat16"])
def test_priorities_may_be_a_column(form):
    with ReplayBuffer.create(TransitionSpec(Field(), Field()), 8) as replay:
        with replay.writer() as writer:
            writer.add_batch(np.arange(8.0), np.zeros(8), np.zeros(8))
        sampler = replay.sampler(64, min_size=1, prioritized=mc.Prioritized(alpha=1.0, epsilon=0.0), seed=0)
        index, column = np.arange(4), np.array([[2.0], [0.5], [4.0], [1.0]])
        assert {*index} <= {*sampler.sample().index}
        if form != "array":
            torch = pytest.importorskip("torch")
            column = torch.tensor(column, dtype=torch.bfloat16 if form == "bfloat16" else torch.float32)
        sampler.update_priorities(index, column)
        assert sampler.state_dict()["masses"][index].tolist() == [2.0, 0.5, 4.0, 1.0]
        says = "priority: expected a number for each index, shape (4,), got (1, 4)"
        check_refused(lambda: sampler.update_priorities(index, np.ones((1, 4))), ValueError, says)


REFUSED = {
    "a part": ({"obs": {"camera": 1}}, "obs: expected the fields ['camera', 'observation.state'], got ['camera']"),
    "no dict": ({"action": np.zeros(2)}, "action: expected the fields ['grip', 'move'], got array("),
    "a deep shape": ({"info": {"x": [1.0], "half": [0] * 3}}, "info['x']: expected float32 (), got shape (1,)"),
    "a scalar reward": ({"reward": 1.0}, "reward: expected float32 (3,), got shape ()"),
    "not finite": ({"reward": [0.0, 1.0, np.inf]}, "reward: expected finite numbers, got inf in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_its_name(case):
    change, says = REFUSED[case]
    with ReplayBuffer.create(NESTED, 8) as replay, replay.writer() as writer:
        with pytest.raises((ValueError, TypeError), match=re.escape(says)):
            writer.add(**row_of(NESTED, 1) | change)
        rows = each(lambda value: np.asarray(value)[None], row_of(NESTED, 1) | change)
        with pytest.raises((ValueError, TypeError)):
            writer.add_batch(**rows)
        assert len(replay) == 0
        writer.add(**row_of(NESTED, 2))
