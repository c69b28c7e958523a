"""The parts of an experiment of sorrel, each alone: packing, messages, the memories."""

import math
import pickle
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sorrel_double as double
import torch

from marlcore import LaneBusy
from marlcore.compat.sorrel import Buffer
from marlcore.compat.sorrel.memory import give_back, learners_memory, rings_for, writes_ignored
from marlcore.compat.sorrel.messages import Book, Mailbox, framed
from marlcore.compat.sorrel.packing import pack, unpack


def filled(capacity: int, rows: int, n_frames: int = 3, buffer: Any = None) -> Any:
    """A buffer with epochs of seven rows that count up, each after its empty frames."""
    buffer = buffer or double.Buffer(capacity, (2,), n_frames)
    buffer.extra_data["positions"] = np.zeros((capacity, 2), np.int64)
    for t in range(rows):
        if t % 7 == 0:
            buffer.add_empty()
        buffer.add([t + 1, -t], t % 2, t / 2, t % 7 == 6, positions=(t, t))
    return buffer


# ---- packing ----


def test_what_is_left_out_is_put_in_wherever_it_was() -> None:
    """Pickling must never make a second memory: sorrel's own branch once trained on one that nobody filled."""
    model = double.Model()
    model.other_name = [model.memory]
    ring = object()
    again = unpack(pack(model, {"ring": model.memory}), {"ring": ring})
    assert again.memory is ring and again.other_name == [ring]
    assert isinstance(model.memory, double.Buffer)


def test_a_view_of_a_large_row_is_packed_alone() -> None:
    """The weights of a store's model are views of one row; each would carry all of it."""
    row = torch.zeros(1_000_000)
    model = torch.nn.Linear(2, 2)
    model.weight.data = row[:4].view(2, 2)
    model.fixed = row[4:6]
    data = pack(model, {})
    assert len(data) < 20_000
    again = unpack(data, {})
    assert isinstance(again.weight, torch.nn.Parameter) and again.weight.requires_grad
    assert again.fixed.tolist() == [0, 0] and not again.fixed.requires_grad


def test_what_cannot_be_pickled_is_named_in_one_line() -> None:
    model = double.Model()
    model.stream = (i for i in ())
    with pytest.raises(TypeError, match=r"^Model: expected something that can be pickled \(.*\)$"):
        pack(model, {})


# ---- messages ----


def test_messages_arrive_whole_and_a_killed_process_leaves_none() -> None:
    with closing(Mailbox()) as box, open(box.path, "wb", buffering=0) as pipe:
        for i in range(3):
            pipe.write(framed(i, np.zeros(1000)))
        assert [epoch for epoch, _ in box.messages()] == [0, 1, 2]
        pipe.write(framed(3, "half")[:-2])
        assert list(box.messages()) == []
        box.drop_rest()
        pipe.write(framed(3, "whole"))
        assert list(box.messages()) == [(3, "whole")]


TURN = SimpleNamespace(epoch=0, turn=1)


def test_epochs_are_recorded_in_order_and_once_whole() -> None:
    logger = double.StepLogger()
    book = Book(logger, "actor", ["learner-0", "learner-1"])
    messages = [("actor", 1, (5.0, 0.4, {}, [])), ("learner-0", 0, 0.25), ("learner-0", 1, 1.0), ("learner-1", 0, 0.5)]
    for message in messages:
        book.take(*message)
        book.record()
    assert logger.epochs == []
    book.take("actor", 0, (4.0, 0.5, {"mean": 2.0}, [TURN]))
    book.record()
    assert logger.epochs == [(0, 0.75, 4.0, 0.5)]
    assert logger.values == [{"mean": 2.0}] and logger.turns == [(0, 1)]
    book.record(all_of_it=True)
    assert math.isnan(logger.epochs[1][1]) and book.scores == [4.0, 5.0]


def test_an_epoch_that_a_successor_repeats_is_recorded_once() -> None:
    logger = double.StepLogger()
    book = Book(logger, "actor", ["learner-0"])
    first, second, third = ((score, 0.5, {}, [TURN] * turns) for score, turns in ((6.0, 2), (7.0, 1), (9.0, 1)))
    for message in (("actor", first), ("actor", second), ("learner-0", 1.0), ("learner-0", 2.0), ("actor", third)):
        book.take(message[0], 0, message[1])
        book.record()
    assert logger.epochs == [(0, 1.0, 7.0, 0.5)] and logger.turns == [(0, 1)]


# ---- the memories ----


@pytest.mark.parametrize("rows", [0, 1, 10, 20, 21, 22, 25, 100])
def test_rows_keep_their_positions_in_the_ring_and_back(rows: int) -> None:
    memory = filled(30, rows)
    (ring,) = rings_for(memory, 1)
    give_back([ring], target := filled(30, 12))
    assert (ring.n_frames, ring.capacity) == (3, 30)
    for copy in (ring, target):
        assert (copy.idx, copy.size) == (memory.idx, memory.size)
        np.testing.assert_array_equal(copy.states, memory.states)
        np.testing.assert_array_equal(copy.extra_data["positions"], memory.extra_data["positions"])
        np.testing.assert_array_equal(copy.current_state(), memory.current_state())
    if rows >= 20:
        np.random.seed(0)
        theirs = memory.sample(8)
        np.random.seed(0)
        here = (theirs[0][:, 0] != 0) & (np.diff(theirs[0][:, ::2], axis=1) >= 0).all(1)  # not across the head
        for mine, other in zip(ring.sample(8), theirs, strict=True):
            np.testing.assert_array_equal(mine[here], other[here])
    ring.add([9, 9], 1, 1.0, False)
    memory.add([9, 9], 1, 1.0, False)
    assert (ring.idx, len(ring)) == (memory.idx, memory.size)
    np.testing.assert_array_equal(ring.states, memory.states)


def test_a_memory_smaller_than_its_ring_gets_its_newest_rows_back() -> None:
    """A ring has room for a stack and the row after it, which sorrel's memory need not have."""
    memory = double.Buffer(4, (1,), 5)
    for t in range(7):
        memory.add([t], t, t / 2, False)
    (ring,) = rings_for(memory, 1)
    assert ring.capacity == 7 and ring.actions[ring.positions()].tolist() == [3, 4, 5, 6]
    ring.add([7], 7, 3.5, True)
    give_back([ring], memory)
    assert (memory.idx, memory.size, memory.last_transition()) == (0, 4, (7, 3.5, True))
    assert memory.states[:, 0].tolist() == [4, 5, 6, 7] and memory.dones.tolist() == [0, 0, 0, 1]


def test_a_buffer_of_marlcore_gets_the_rows_of_all_copies_back() -> None:
    memory = Buffer(20, (1,), 2, positions=(2,))
    memory.add([1], 1, 0.5, False, positions=(3, 4))
    rings = rings_for(memory, 2)
    rings[1].add([2], 0, 1.5, True, positions=(5, 6))
    give_back(rings, memory)
    assert (len(memory), memory.last_transition(1), memory.last_transition()) == (2, (1, 0.5, False), (0, 1.5, True))
    assert memory.extra_data["positions"][:2].tolist() == [[3, 4], [5, 6]]
    pickle.loads(pickle.dumps(memory)).add([3], 1, 0.0, False)  # it is free for the next process


def test_windows_never_mix_copies_of_the_world() -> None:
    """Rows of two copies in one ring would make stacks of frames that no agent ever saw."""
    rings = rings_for(double.Buffer(60, (1,), 3), 2)
    memory = learners_memory(rings)
    assert (memory.capacity, len(memory)) == (60, 0)
    for t in range(100):  # turn by turn, as the actor advances its copies
        rings[0].add([t], 0, 0.0, False)
        rings[1].add([1000 + t], 1, 1.0, False)
    drawn = []
    for _ in range(100):
        states, actions, rewards, next_states, _, _ = memory.sample(20)
        frames = np.concatenate([states, next_states[:, -1:]], axis=1)
        assert (np.diff(frames, axis=1) == 1).all()
        np.testing.assert_array_equal(actions[:, 0], states[:, 2] >= 1000)
        np.testing.assert_array_equal(actions, rewards)
        drawn += actions[:, 0].tolist()
    assert abs(np.mean(drawn) - 0.5) < 0.05
    with pytest.raises(AttributeError, match="memory of 2 copies"):
        memory.idx  # noqa: B018
    give_back(rings, target := double.Buffer(60, (1,), 3))
    assert target.size == 60 and target.states[29] == 99 and target.states[30] == 1070


def test_a_batch_can_be_drawn_where_sorrels_condition_says_so() -> None:
    rings = rings_for(double.Buffer(60, (1,), 3), 2)
    memory = learners_memory(rings)
    for t in range(30):
        rings[t % 2].add([t], 0, 0.0, False)
        ready = len(memory) >= 5 + 3 + 1
        with nullcontext() if ready else pytest.raises(ValueError, match="batch_size: expected at most"):
            memory.sample(5)


def test_a_models_hooks_add_nothing_in_its_learner() -> None:
    (ring,) = rings_for(filled(30, 12), 1)
    memory = learners_memory([ring])
    before = (ring.idx, len(ring))
    with writes_ignored(memory):
        memory.add_empty()
        memory.add([1, 1], 0, 0.0, False)
        memory.clear()
    assert (memory.idx, memory.size) == before
    ring.add([1, 1], 0, 0.0, False)  # the actor
    other = unpack(pack(ring, {}), {})
    with pytest.raises(LaneBusy):
        learners_memory([other]).add([1, 1], 0, 0.0, False)
    memory.clear()
    assert len(ring) == 0 and memory[0][1] == 0
