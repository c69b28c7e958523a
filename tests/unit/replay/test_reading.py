"""Reading without a sampler: chosen rows, whole episodes and all that is held, against the oracle of plain lists."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from model import SPECS, allowed_in, fill, filled
from refused import check_refused
from seams import trusting
from tiers import long_but

import marlcore as mc
from marlcore.errors import NotHeld
from marlcore.transitions import ReadPlan

ROWS = [100, 19, 45]
TICKETS = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"))
WINDOWS = [
    {}, {"stack": 4, "layout": "separate"}, {"n_step": 3, "gamma": 0.9}, {"stack": 3, "n_step": 2, "pad": "zero"}
]  # fmt: skip
CASES = [(name, window) for name in SPECS for window in (WINDOWS if not SPECS[name].next_obs else WINDOWS[:1])]
QUICK = [("vector", WINDOWS[0]), ("vector", WINDOWS[3]), ("odd sizes", WINDOWS[1]), ("next_obs", {})]


def add_tickets(replay, first, end, lane=0, last=()):
    """Adds rows whose observation and action are their tickets."""
    with replay.writer(lane) as writer:
        for ticket in range(first, end):
            writer.add(ticket, ticket, 0.0, terminated=ticket in last)


def checked(model, batch, allowed, layout=None, **window):
    return model.check(batch, allowed=allowed, **window)


@pytest.mark.parametrize(("name", "window"), long_but(QUICK, CASES))
def test_chosen_rows_are_as_the_oracle_says(name, window):
    replay, model = filled(SPECS[name], ROWS, 36)
    with replay:
        windows = [window, *([] if SPECS[name].next_obs else [window | {"sequence": mc.Sequence(4, 1)}])]
        for options in windows:
            allowed = allowed_in(model, options)
            for index in (np.random.default_rng(0).choice([*allowed], 70), [*allowed][:1], []):
                batch = replay.read(index, **options)
                assert checked(model, batch, allowed, **options) == list(index)
            every = np.arange(-7, 3 * 200)
            rest = replay.read(every, missing="skip", **options)
            assert checked(model, rest, allowed, **options) == sorted(allowed)


@pytest.mark.parametrize(("name", "window"), long_but(QUICK, CASES))
def test_batches_have_each_held_row_once_and_in_order(name, window):
    replay, model = filled(SPECS[name], ROWS, 36)
    with replay:
        allowed = allowed_in(model, window)
        for size in (1, 7, 16, len(allowed), 1000):
            batches = list(replay.batches(size, **window))
            indices = np.concatenate([checked(model, batch, allowed, **window) for batch in batches])
            assert sorted(indices) == sorted(allowed)
            assert all((np.diff(indices[indices % 3 == lane]) > 0).all() for lane in range(3))
            assert [*map(len, batches[:-1])] == [size] * (len(batches) - 1) and 0 < len(batches[-1]) <= size


@pytest.mark.parametrize(
    ("name", "window"), [case for case in long_but(QUICK[:3], CASES) if case.values[0] != "next_obs"]
)
def test_each_whole_episode_comes_once_and_in_order(name, window):
    replay, model = filled(SPECS[name], ROWS, 36)
    with replay:
        allowed = allowed_in(model, window)
        expected = model.whole_episodes()
        episodes = [checked(model, batch, allowed, **window) for batch in replay.episodes(**window)]
        assert sorted(episodes) == sorted(expected) and len(expected) > 8
        age = [model.lanes[indices[0] % 3].next_ticket - indices[0] // 3 for indices in episodes]
        assert age == sorted(age, reverse=True)


def test_an_episode_that_begins_before_the_window_is_not_whole():
    """Ages are counted on at about 2^23 after 2^24 rows, so an episode's end does not say where it begins."""
    with mc.ReplayBuffer.create(TICKETS, 16) as replay, replay.writer() as writer:
        writer._native.raw.age = 2**24 - 6
        for ticket in range(30):
            writer.add(ticket, ticket, 0.0, terminated=ticket in (9, 25, 28))
            whole = [range(10, 26)] * (ticket == 25) + [range(26, 29)] * (ticket >= 28)
            assert [episode.action.tolist() for episode in replay.episodes()] == [*map(list, whole)]


def test_a_missing_row_is_refused_by_name_or_left_out():
    with mc.ReplayBuffer.create(TICKETS, 20, lanes=2) as replay, replay.writer(lane=1) as writer:
        for ticket in range(13):
            writer.add(ticket, ticket, 0.0)
        index = [2 * 12 + 1, 2 * 5 + 1, 2 * 2 + 1, 2 * 5 + 1, -1, 2**62, 0]  # the newest, and the overwritten third
        assert replay.read(index, missing="skip").action.tolist() == [5, 5]
        says = f"holds whole, got 5 other rows, such as {index[0]}, ticket 12 of lane 1"
        check_refused(partial(replay.read, index), NotHeld, says)
        assert issubclass(NotHeld, IndexError) and len(replay.read([0], missing="skip")) == 0
        writer.add(13, 13, 0.0, truncated=True, final_obs=14)
        assert replay.read(index[:1]).action.tolist() == [12]
        says = "such as 29, ticket 14 of lane 1, which holds an episode's final_obs"
        check_refused(partial(replay.read, [2 * 14 + 1]), NotHeld, says)


def test_the_index_of_a_sampler_of_some_lanes_counts_in_these():
    replay, model = filled(SPECS["vector"], [30] * 4, 36)
    with replay:
        for options in ({}, {"lanes": range(1, 3)}):
            batch = replay.sampler(64, seed=0, min_size=1, **options).sample()
            again = replay.read(batch.index, **options)
            assert (again.obs == batch.obs).all() and (again.index == batch.index).all()
        mixed = mc.Mixture([replay, replay], [0.5, 0.5], 64, seed=0).sample()
        assert (replay.read(mixed.index // 2).obs == mixed.obs).all()
        part = sum(len(batch) for batch in replay.batches(8, lanes=range(1, 3)))
        assert part == sum(index % 4 in (1, 2) for index in model.sampleable(1, 1))


def test_tensors_name_rows_and_batches_become_tensors():
    torch = pytest.importorskip("torch")
    replay, _ = filled(SPECS["vector"], ROWS, 36)
    with replay:
        drawn = replay.sampler(16, seed=0, min_size=1).sample().torch()
        again = replay.read(drawn.index).torch()
        assert torch.equal(again.obs, drawn.obs) and torch.equal(again.index, drawn.index)
        assert all(len(episode.torch().obs) == len(episode) for episode in replay.episodes())


def test_a_copy_stays_as_it_is_whatever_is_read_later():
    replay, model = filled(SPECS["vector"], ROWS, 36)
    with replay:
        batches = [*replay.batches(5), *replay.episodes(), replay.read([*model.sampleable(1, 1)])]
        kept = [batch.obs.tolist() for batch in batches]
        fill(replay, model, np.random.default_rng(1), [40, 40, 40])
        assert sum(len(batch) for batch in replay.batches(5)) > 0
        assert [batch.obs.tolist() for batch in batches] == kept


def test_only_what_is_held_at_the_call_is_read():
    with mc.ReplayBuffer.create(TICKETS, 40, lanes=2) as replay:
        add_tickets(replay, 0, 12, last=(3, 8))
        batches, episodes = replay.batches(4), replay.episodes()
        add_tickets(replay, 12, 18, last=(14,))
        assert next(batches).action.tolist() == [0, 1, 2, 3] and next(episodes).action.tolist() == [0, 1, 2, 3]
        add_tickets(replay, 0, 9, lane=1, last=(4,))
        add_tickets(replay, 18, 26)  # overwrites 0 to 5
        assert [batch.action.tolist() for batch in batches] == [[6, 7, 8, 9], [10]]
        assert [episode.action.tolist() for episode in episodes] == []


@pytest.mark.parametrize("trusted", [False, True], ids=["", "control"])
@pytest.mark.parametrize("verb", ["read", "batches", "episodes"])
def test_rows_overwritten_while_they_are_copied_are_left_out(verb, trusted, monkeypatch):
    """The control trusts the copies, which have newer values under older tickets."""
    read_windows, due = ReadPlan.read_windows, []

    def read_and_write(plan):
        read_windows(plan)
        if due:
            add_tickets(replay, *due.pop(), last=range(99))

    with mc.ReplayBuffer.create(TICKETS, 16) as replay, trusting() if trusted else nullcontext():
        add_tickets(replay, 0, 16, last=range(99))
        copies = {
            "read": lambda: [replay.read([*range(16)], missing="skip")],
            "batches": partial(list, replay.batches(16)),
            "episodes": partial(list, replay.episodes()),
        }
        monkeypatch.setattr(ReadPlan, "read_windows", read_and_write)
        due.append((16, 19))
        got = copies[verb]()
        whole = all((batch.action == batch.index).all() for batch in got)
        assert whole != trusted
        if not trusted:
            read = np.concatenate([batch.index for batch in got])
            assert (np.diff(read) > 0).all() and read.min() >= 3 and read.max() == 15


def test_a_closed_replay_gives_no_more_batches():
    replay, _ = filled(SPECS["vector"], ROWS, 36)
    iterators = [replay.batches(4), replay.episodes()]
    for iterator in iterators:
        next(iterator)
    replay.close()
    for call in (*(partial(next, iterator) for iterator in iterators), partial(replay.read, [0]), replay.episodes):
        check_refused(call, mc.errors.ClosedError, "closed")
