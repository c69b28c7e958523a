"""TorchRL's replay buffer over lanes: the same rows as from its own storages, from any number of processes."""

import multiprocessing
import pickle
import warnings
from functools import partial
from types import MappingProxyType

import cloudpickle
import numpy as np
import pytest
import torch
from meanwhile import running
from model import chi_square_limit
from refused import check_refused, refusals

from marlcore import LaneBusy, MarlcoreError, NotEnoughData, SegmentCorrupt

# TorchRL's own storages take words of shared memory from an arena that Python makes once and keeps.
_ARENA = multiprocessing.Value("q", 0)


@pytest.fixture(scope="module", autouse=True)
def torchrl():
    """Imported here, since that takes a second, and each process of pytest imports this file."""
    global DoubleToFloat, TensorDict, TensorDictReplayBuffer, trl
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other packages say of one another while they are imported
        import torchrl.data as trl
        from tensordict import TensorDict
        from torchrl.envs.transforms import DoubleToFloat
    from marlcore.compat.torchrl import TensorDictReplayBuffer


def rows(count, first=0):
    """What a collector hands over: nested, of several dtypes and shapes, each row telling its number."""
    from tensordict import TensorDict  # a process that was spawned has no fixture

    number = torch.arange(first, first + count)
    return TensorDict(
        {
            "observation": number[:, None].float().expand(count, 4).clone(),
            "pixels": (number[:, None, None] % 256).to(torch.uint8).expand(count, 20, 20).clone(),
            "action": number % 3,
            "done": (number % 7 == 6)[:, None],
            "next": {"observation": number[:, None].float().expand(count, 4) + 1, "reward": number[:, None].double()},
        },
        [count],
    )


def found(buffer, count=3000):
    """The set of different rows that are drawn, as bytes of every leaf."""
    batch = buffer.sample(count).exclude("index")
    keys = sorted(batch.keys(True, True), key=str)
    leaves = [batch.get(key).numpy() for key in keys]
    return {tuple(leaf[i].tobytes() for leaf in leaves) for i in range(count)}, keys


def pair(size, storage="LazyTensorStorage", where=MappingProxyType({}), **options):
    """TorchRL's buffer and marlcore's."""
    theirs = trl.TensorDictReplayBuffer(storage=getattr(trl, storage)(size, **where), **options)
    return theirs, TensorDictReplayBuffer(size, **options)


def holding(count, size=64, **options):
    """A buffer of marlcore's with rows."""
    buffer = TensorDictReplayBuffer(size, **options)
    if count:
        buffer.extend(rows(count))
    return buffer


def numbers(batch):
    return batch["next", "reward"].flatten().int().tolist()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.long
@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyMemmapStorage"])
@pytest.mark.parametrize("size", [100, 300])
def test_the_same_rows_are_drawn_as_from_its_own_storage(storage, size, tmp_path):
    where = {"scratch_dir": str(tmp_path)} if storage == "LazyMemmapStorage" else {}
    theirs, ours = pair(size, storage, where)
    for first, count in ((0, 40), (40, 1), (41, 99), (140, 30), (170, 1)):
        for buffer in (theirs, ours):
            buffer.add(rows(1, first)[0]) if first == 170 else buffer.extend(rows(count, first))
        assert len(ours) == len(theirs)
    assert found(ours) == found(theirs)


def test_a_sample_has_the_keys_shapes_and_dtypes_of_its_own():
    theirs, ours = pair(50, batch_size=8)
    for buffer in (theirs, ours):
        buffer.extend(rows(30))
    expected, got = theirs.sample(), ours.sample()
    assert got.batch_size == expected.batch_size
    assert set(got.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert (got.get(key).shape, got.get(key).dtype) == (expected.get(key).shape, expected.get(key).dtype), key


def steps(count, envs=4, nested=()):
    """What a collector of several environments hands over: rows of `count` steps, with a TensorDict of `nested`."""
    size = [envs, count]
    number = torch.arange(envs * count).view(*size, *[1] * len(nested)).expand(*size, *nested)
    state = TensorDict({"x": number[..., None].float().clone()}, [*size, *nested])
    return TensorDict({"obs": torch.zeros(*size, 2), "next": {"reward": torch.ones(*size, 1)}, "state": state}, size)


@pytest.mark.parametrize("nested", [(), (2,)])
def test_a_row_keeps_its_batch_dimensions(nested, tmp_path):
    theirs, ours = pair(50)
    for buffer in (theirs, ours):
        buffer.extend(steps(3, nested=nested))
        buffer.add(steps(3, nested=nested)[0])
    ours.dumps(tmp_path)
    loaded, example = TensorDictReplayBuffer(50), TensorDictReplayBuffer(50, example=steps(3, 1, nested))
    loaded.loads(tmp_path)
    example.extend(steps(3, nested=nested))
    expected = theirs.sample(5)
    for buffer in (ours, loaded, example):
        got = buffer.sample(5)
        assert got.batch_size == expected.batch_size == (5, 3)
        assert got["next"].batch_size == expected["next"].batch_size == (5, 3)
        assert got["state"].batch_size == expected["state"].batch_size == (5, 3, *nested)
        assert got["index"].shape == expected["index"].shape and len(got.reshape(-1)) == 15
    flat = steps(3, nested=nested).auto_batch_size_(1)
    check_refused(lambda: ours.extend(flat), ValueError, "batch_size: expected ([3], {")
    assert len(ours) == 5


def test_every_held_row_is_equally_likely_the_newest_too():
    ours = holding(0)
    assert ours.extend(rows(100)).tolist() == list(range(100)) and len(ours) == 64
    counts = np.bincount(ours.sample(6400)["index"], minlength=100)
    assert not counts[:36].any()
    assert ((counts[36:] - 100) ** 2 / 100).sum() < chi_square_limit(63)


def test_transforms_and_prefetch_are_torchrls():
    ours = holding(40, batch_size=16, prefetch=2, transform=DoubleToFloat(in_keys=[("next", "reward")]))
    for _ in range(5):
        batch = ours.sample()
        assert batch["next", "reward"].dtype == torch.float32
        assert (batch["next", "reward"] == batch["observation"][:, :1]).all()
    ours._prefetch_executor.shutdown()


def test_a_seed_makes_the_draws_reproducible():
    one, other = (holding(40, batch_size=16, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    for _ in range(3):
        assert one.sample()["index"].tolist() == other.sample()["index"].tolist()


REFUSED = [
    (lambda: holding(0).sample(4), NotEnoughData, "at least one row"),
    (lambda: holding(0).extend(TensorDict({"x": torch.zeros(2, 9, dtype=torch.bfloat16)}, [2])), TypeError,
        "a dtype that NumPy has"),
    (lambda: holding(2)[0], IndexError, "no slots"),
    (lambda: holding(0, storage=trl.LazyTensorStorage(8)), ValueError, "storage: expected none"),
    (lambda: pickle.dumps(holding(0)), TypeError, "give it an `example`"),
]  # fmt: skip
test_refuses = refusals(REFUSED)


def test_refuses_bad_rows_and_adds_nothing():
    ours = holding(10)
    for bad, says in (
        (rows(2).exclude("action"), "tensordict: expected the fields"),
        (rows(2).set("observation", torch.zeros(2, 5)), "observation: expected float32 (2, 4), got shape (2, 5)"),
    ):
        check_refused(partial(ours.extend, bad), ValueError, says)
        assert len(ours) == 10


def test_extensions_may_be_empty_or_of_a_graph():
    theirs, ours = pair(50)
    of_a_graph = rows(5).set("value", torch.ones(5, requires_grad=True) * 2)
    ours.extend(of_a_graph[:0])  # its own takes none as the first
    for buffer in (theirs, ours):
        buffer.extend(of_a_graph)
        index = buffer.extend(of_a_graph[:0])
        assert (index.shape, index.dtype, len(buffer)) == ((0,), torch.int64, 5)
    assert not ours.sample(3)["value"].requires_grad


def test_empty_deletes_and_a_checkpoint_brings_back(tmp_path):
    ours = holding(40)
    held = found(ours)
    ours.dumps(tmp_path)
    state = ours.state_dict()
    ours.empty()
    assert len(ours) == 0
    for load in (lambda buffer: buffer.loads(tmp_path), lambda buffer: buffer.load_state_dict(state)):
        again = TensorDictReplayBuffer(64)
        load(again)
        assert found(again) == held
        again.extend(rows(10, 40))
        assert len(again) == 50


def test_a_state_that_does_not_fit_takes_no_row_away(tmp_path):
    ours, other = holding(40), holding(40, 640)
    held = found(ours)
    good, large = ours.state_dict(), other.state_dict()
    other.dumps(tmp_path)
    saved = good["_storage"]["saved"]
    for storage, error, said in (
        (large["_storage"], ValueError, "max_size, lanes: expected 640, 1, as in the saved buffer"),
        ({**good["_storage"], "saved": torch.zeros(5000, dtype=torch.uint8)}, SegmentCorrupt, "expected a marlcore"),
        ({**good["_storage"], "saved": saved[:-1]}, SegmentCorrupt, "expected a file of"),
        ({**good["_storage"], "keys": {"leaf_0": "action"}}, ValueError, "keys: expected the fields"),
    ):
        check_refused(partial(ours.load_state_dict, {**good, "_storage": storage}), error, said)
    check_refused(lambda: ours.loads(tmp_path), ValueError, "max_size, lanes: expected 640, 1, as in the saved buffer")
    assert len(ours) == 40 and found(ours) == held
    ours.extend(rows(1, 40))
    ours.load_state_dict(good)
    assert found(ours) == held


def write_rows(buffer, first, count, all_write):
    """In another process: rows one by one and in batches; the first ones take it a lane."""
    for at in range(first, first + count, 10):
        buffer.extend(rows(9, at))
        buffer.add(rows(1, at + 9)[0])
        if at == first:
            all_write.wait()  # a lane of who has ended already would be free again


@pytest.mark.long
def test_what_processes_write_side_by_side_is_whole():
    """A process that was forked, and one that was spawned, to which the buffer was pickled."""
    forked, spawned = map(multiprocessing.get_context, ("fork", "spawn"))
    ours = TensorDictReplayBuffer(600, lanes=2, example=rows(1)[0])
    all_write = spawned.Barrier(2)
    writers = [
        context.Process(target=write_rows, args=(ours, 10_000 * k, 2000, all_write))
        for k, context in enumerate((forked, spawned))
    ]

    def draw_whole_rows():
        batch = ours.sample(64)
        number = batch["next", "reward"]
        assert (batch["observation"] == number).all() and (batch["next", "observation"] == number + 1).all()
        assert (batch["pixels"] == (number % 256).to(torch.uint8)[:, :, None]).all()

    with running(*writers):
        while any(writer.is_alive() for writer in writers):
            if len(ours):
                draw_whole_rows()
    draw_whole_rows()
    assert len(ours) == 600
    assert {*numbers(ours.sample(6000))} <= {*range(1700, 2000), *range(11_700, 12_000)}
    ours.empty()
    assert len(ours) == 0


def stand_by(buffer, line):
    """In another process: has the buffer, then adds a row, draws it, and may not forget it."""
    line.send(len(buffer))
    line.recv()
    buffer.add(rows(1, 500)[0])
    line.send((len(buffer), 500 in numbers(buffer.sample(400))))
    try:
        buffer.empty()
    except MarlcoreError as error:
        line.send(str(error))


def test_nobody_empties_what_another_process_has():
    context = multiprocessing.get_context("fork")
    line, end = context.Pipe()
    ours = TensorDictReplayBuffer(600, lanes=2)
    ours.extend(rows(5))
    ours.sample(4)  # this process's lane and sampler are no child's
    state = ours.state_dict()
    other = context.Process(target=stand_by, args=(ours, end))
    other.start()
    end.close()
    with line:
        assert line.recv() == 5
        for forget in (ours.empty, lambda: ours.load_state_dict(state)):
            check_refused(forget, MarlcoreError, "expected a buffer of one process")
        ours.extend(rows(5, 5))
        line.send("go on")
        assert line.recv() == (11, True)
        assert "expected a buffer of one process" in line.recv()
    other.join()
    assert other.exitcode == 0
    assert len(ours) == 11
    ours.load_state_dict(state)
    assert len(ours) == 5


def test_more_writers_than_lanes_are_refused():
    ours = holding(5)
    other = cloudpickle.loads(cloudpickle.dumps(ours))
    assert len(other) == 5
    check_refused(lambda: other.extend(rows(5)), LaneBusy, "one for each process that adds rows, got 1")
