"""Batches of sequences, [B, T], against the oracle of plain Python lists; and what may be no sequence."""

from __future__ import annotations

import numpy as np
import pytest
from model import Model, add_batch, random_row

from marlcore import Field, NotEnoughData, Prioritized, ReplayBuffer, Sequence, TransitionSpec
from marlcore.kernels.rows import TICKET
from marlcore.transitions import Drawing

EVERY = 4
SCALAR = TransitionSpec(Field(), Field((), "int64"))
STATE = TransitionSpec(Field(), Field((), "int64"), {"h": Field((2,), every=EVERY)})

SPECS = {
    "inline": TransitionSpec(Field((4,)), Field((), "int64"), {"log_prob": Field(), "done": Field((), "bool")}),
    "frames": TransitionSpec({"image": Field((17, 19), "uint8"), "id": Field((), "int16")}, Field((2,), "float64")),
    "states": TransitionSpec(
        {"image": Field((9, 31), "uint8"), "speed": Field((3,))},
        Field((), "int64"),
        {"h": Field((5,), every=EVERY), "c": Field((99,), "float64", every=EVERY), "log_prob": Field()},
    ),
}
SHAPES = {
    1: [Sequence(1), Sequence(5), Sequence(5, 2), Sequence(5, 2, 5), Sequence(5, 0, 9), Sequence(8, 3, 2),
        Sequence(4, 3, 1), Sequence(13, 4)],
    EVERY: [Sequence(4), Sequence(6, 2), Sequence(8, 0, 4), Sequence(3, 1, 8), Sequence(12, 4), Sequence(2, 1, 12)],
}  # fmt: skip
WINDOWS = [(1, 1, "repeat"), (4, 1, "repeat"), (4, 1, "zero"), (1, 3, "repeat"), (3, 2, "zero")]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(21)


def fill(replay: ReplayBuffer, model: Model, rng: np.random.Generator, rows: list[int]) -> None:
    """Writes about rows[lane] transitions to each lane: long and short episodes, every kind of end, seams."""
    for lane, count in enumerate(rows):
        writer = replay.writer(lane)
        while count > 0:
            end = rng.choice([0.02, 0.1, 0.5])
            some = [random_row(replay.spec, rng, end) for _ in range(rng.integers(1, 9))]
            count -= len(some)
            if rng.random() < 0.5:
                add_batch(writer, model, lane, some, version=int(rng.integers(2**32)))
            else:
                for row in some:
                    assert writer.add(**row) == model.add(lane, version=writer.policy_version, **row)
            if rng.random() < 0.1:
                writer.new_episode()
                model.lanes[lane].seam()
        writer.close()


def one_episode(replay: ReplayBuffer, rows: int, before: int = 0, **last: object) -> None:
    """`before` rows that end an episode, then `rows` of another, whose last may end it; obs is the ticket."""
    with replay.writer() as writer:
        for ticket in range(before + rows):
            end = {"terminated": True} if ticket == before - 1 else last if ticket == before + rows - 1 else {}
            extras = {"h": np.full(2, ticket)} if "h" in replay.spec.extras else {}
            writer.add(float(ticket), ticket, 1.0, **end, **extras)


def starts(replay: ReplayBuffer, sequence: Sequence, **options) -> list[int]:
    """The tickets at which a sequence that may be drawn begins."""
    sampler = replay.sampler(64, sequence=sequence, min_size=1, seed=1, **options)
    return sorted({int(index) for _ in range(4) for index in sampler.sample().index})


# ---- against the oracle ----


@pytest.mark.long
@pytest.mark.parametrize("prioritized", [None, Prioritized()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize(("stack", "n_step", "pad"), WINDOWS)
@pytest.mark.parametrize("name", SPECS)
def test_every_allowed_sequence_is_as_the_oracle_says(name, stack, n_step, pad, prioritized):
    spec, rng = SPECS[name], np.random.default_rng(len(name) + 10 * stack + 100 * n_step + bool(prioritized))
    with ReplayBuffer.create(spec, 3 * 32, lanes=3) as replay:
        model = Model(spec, 3, 32)
        fill(replay, model, rng, [100, 19, 45])
        assert len(replay) == len(model)
        for sequence in SHAPES[spec.state_every]:
            window = {"stack": stack, "n_step": n_step, "gamma": 0.9, "pad": pad, "sequence": sequence}
            sampler = replay.sampler(16, seed=3, min_size=1, prioritized=prioritized, **window)
            allowed = model.sampleable(stack, n_step, sequence)
            assert len(allowed) > 2
            seen: set[int] = set()
            for _ in range(12 * len(allowed) // 16 + 1):
                seen.update(model.check(sampler.sample(), allowed=allowed, **window))
            assert seen == set(allowed), sequence


def test_the_oracle_notices_options_that_are_off_by_one(rng):
    """A positive control of the test above: a period, burn-in or length that is off by one."""
    with ReplayBuffer.create(SPECS["inline"], 32) as replay:
        model = Model(SPECS["inline"], 1, 32)
        fill(replay, model, rng, [60])
        batch = replay.sampler(64, sequence=Sequence(5, 2), min_size=1, seed=0).sample()
        model.check(batch, sequence=Sequence(5, 2))
        for wrong in (Sequence(5, 2, 4), Sequence(5, 1, 3), Sequence(4, 1)):
            with pytest.raises((AssertionError, IndexError)):
                model.check(batch, sequence=wrong)


# ---- where a sequence begins and ends ----


@pytest.mark.parametrize(
    ("rows", "sequence", "expected"),
    [
        (10, Sequence(4, period=2), [0, 2, 4, 6, 8]), (10, Sequence(4, period=4), [0, 4, 8]),
        (10, Sequence(4, period=6), [0, 6]), (2, Sequence(6, 4), [0]), (14, Sequence(6, 2), [0, 4, 8]),
    ],
)  # fmt: skip
def test_a_sequence_begins_at_each_period_of_its_episode(rows, sequence, expected):
    with ReplayBuffer.create(SCALAR, 40) as replay:
        one_episode(replay, rows, terminated=True)
        assert starts(replay, sequence) == expected


def test_a_sequence_that_just_fits_a_lane_is_drawn():
    with ReplayBuffer.create(SCALAR, 12) as replay:
        one_episode(replay, 40)
        assert starts(replay, Sequence(11, period=1)) == [28]


@pytest.mark.parametrize("end", [{"truncated": True, "final_obs": 77.0}, {"terminated": True}], ids=str)
def test_a_sequence_ends_with_its_episode(end):
    with ReplayBuffer.create(SCALAR, 40) as replay:
        one_episode(replay, 3, **end)
        batch = replay.sampler(2, sequence=Sequence(5)).sample()
        assert batch.mask.tolist() == [[True, True, True, False, False]] * 2
        ends = [[False, False, True, False, False]] * 2
        assert [batch.terminated.any(), batch.truncated.any()] == ["terminated" in end, "truncated" in end]
        assert (batch.terminated | batch.truncated).tolist() == ends
        bootstrapped = 3 if "truncated" in end else 2
        assert batch.discount[0].tolist() == [np.float32(0.99)] * bootstrapped + [0] * (5 - bootstrapped)
        if "truncated" in end:
            assert batch.next_obs.tolist() == [[1, 2, 77, 0, 0]] * 2


def test_without_a_period_each_transition_is_trained_on_once():
    with ReplayBuffer.create(SCALAR, 40) as replay:
        one_episode(replay, 14, terminated=True)
        sampler = replay.sampler(64, sequence=Sequence(6, 2), min_size=1, seed=0)
        batch = sampler.sample()
        trained = {int(row): batch.action[i][batch.mask[i]].tolist() for i, row in enumerate(batch.index)}
        # The first needs no burn-in; of one that began with the episode's last two rows only burn-in would be left.
        assert trained == {0: [0, 1, 2, 3, 4, 5], 4: [6, 7, 8, 9], 8: [10, 11, 12, 13]}


def test_a_sequence_at_the_write_head_is_drawn_once_it_is_whole():
    with ReplayBuffer.create(SCALAR, 40) as replay:
        sampler = replay.sampler(4, sequence=Sequence(4), min_size=1)
        with replay.writer() as writer:
            for ticket in range(4):
                writer.add(float(ticket), ticket, 1.0)
                with pytest.raises(NotEnoughData, match="begins a sequence of 4 that is held whole"):
                    sampler.sample()
            writer.add(4.0, 4, 1.0)  # the last one's next_obs
            assert sampler.sample().action.tolist() == [[0, 1, 2, 3]] * 4


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_sequence_ends_at_a_seam(n_step):
    """Where a writer was replaced, a sequence ends with the last whole return."""
    with ReplayBuffer.create(SCALAR, 40) as replay:
        one_episode(replay, 7)
        sequence = Sequence(5, period=5)
        # Rows behind the seam are what shows that nothing more comes.
        assert starts(replay, sequence, n_step=1) == [0]
        one_episode(replay, 2)
        whole = 7 - n_step
        sampler = replay.sampler(32, sequence=sequence, n_step=n_step, min_size=1, seed=0)
        for _ in range(3):
            batch = sampler.sample()
            lengths = dict(zip(batch.index.tolist(), batch.mask.sum(1).tolist(), strict=True))
            assert lengths == {0: min(5, whole)} | ({5: whole - 5} if whole > 5 else {})


def test_an_episode_longer_than_any_age_has_sequences():
    """Ages go on at about half of 2^24, at the same place between stored states."""
    with ReplayBuffer.create(STATE, 16) as replay, replay.writer() as writer:
        writer._native.raw.age = 2**24 - 6
        for ticket in range(16):
            writer.add(float(ticket), ticket, 1.0, h=np.full(2, ticket))
        sampler = replay.sampler(64, sequence=Sequence(4), min_size=1, seed=0)
        batch = sampler.sample()
        # 2^24 - 4, where a state is stored, is 2 rows on.
        assert sorted(set(batch.index.tolist())) == [2, 6, 10]
        assert (batch.extras["h"][:, 0] == batch.index).all()


# ---- stored recurrent states ----


@pytest.mark.long
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("by_batch", [False, True], ids=["add", "add_batch"])
def test_a_state_goes_with_the_first_ticket_of_its_row(before, by_batch):
    """Ticket t's state lies in a row with the tickets from t - t % 4 on; a lap later the first of them ends it."""
    capacity = 12
    for rows in range(9, 60):
        with ReplayBuffer.create(STATE, capacity) as replay:
            total = before + rows
            if by_batch:
                tickets = np.arange(total)
                with replay.writer() as writer:
                    for some in np.split(tickets, range(5, total, 5)):
                        h = np.repeat(some[:, None], 2, 1).astype("f")
                        writer.add_batch(some.astype("f"), some, np.ones(len(some)), some == before - 1, h=h)
            else:
                one_episode(replay, rows, before)
            lowest = max(0, total - capacity)
            begins = [t for t in range(before, total - 3) if (t - before) % EVERY == 0 and t >= lowest]
            expected = [t for t in begins if t == before or t - t % EVERY >= lowest]
            expected += [0] if before and lowest == 0 else []
            sampler = replay.sampler(64, sequence=Sequence(3, period=4), min_size=1, seed=rows)
            batches = [sampler.sample() for _ in range(2)]
            index = np.concatenate([batch.index for batch in batches])
            state = np.concatenate([batch.extras["h"] for batch in batches])
            assert sorted(set(index.tolist())) == sorted(expected)
            first = (index == before) | (index == 0)
            assert (state == np.where(first, 0, index)[:, None]).all()


@pytest.mark.parametrize("prioritized", [None, Prioritized()], ids=["uniform", "prioritized"])
def test_a_sequence_without_its_state_is_drawn_no_more(prioritized):
    """Sequences begin at 3, 7 and 11; the states of 7 and 11 lie in rows with those from 4 and from 8 on."""
    with ReplayBuffer.create(STATE, 12) as replay:
        one_episode(replay, 12, before=3)
        sequence = Sequence(3, period=4)
        sampler = replay.sampler(32, sequence=sequence, min_size=1, seed=0, prioritized=prioritized)
        assert set(sampler.sample().index.tolist()) == {3, 7, 11}
        with replay.writer() as writer:
            for lowest in range(4, 14):
                writer.new_episode()  # nothing can be drawn of rows that nothing follows
                writer.add(0.0, 0, 0.0, h=np.zeros(2))
                expected = {7, 11} if lowest == 4 else {11} if lowest <= 8 else set()
                assert sampler.can_sample() == bool(expected), lowest
                assert not expected or set(sampler.sample().index.tolist()) == expected, lowest
        assert sampler.stats.lapped == 0


@pytest.mark.parametrize("prioritized", [None, Prioritized()], ids=["uniform", "prioritized"])
def test_a_state_that_is_overwritten_while_copied_is_redrawn(prioritized, monkeypatch):
    with ReplayBuffer.create(STATE, 12) as replay:
        one_episode(replay, 12, before=3)
        sequence = Sequence(3, period=4)
        sampler = replay.sampler(32, sequence=sequence, min_size=1, seed=0, prioritized=prioritized)
        validate, first = Drawing.lapped, []

        def overwrite_and_validate(drawing: Drawing, filled: int):
            if not first:
                first.extend(drawing.chosen[TICKET, :filled].tolist())
                one_episode(replay, 2)  # 3 and 4, and with 4 the state of 7
            return validate(drawing, filled)

        monkeypatch.setattr(Drawing, "lapped", overwrite_and_validate)
        batch = sampler.sample()
        assert set(first) == {3, 7, 11}
        assert set(batch.index.tolist()) == {11} and (batch.extras["h"] == 11).all()
        assert sampler.stats.lapped == sum(ticket != 11 for ticket in first)


def test_stored_states_come_with_sequences_alone_as_tensors_too():
    with ReplayBuffer.create(STATE, 12) as replay:
        one_episode(replay, 12)
        assert replay.sampler(4).sample().extras == {}
        batch = replay.sampler(4, sequence=Sequence(4, 1, 4)).sample()
        pytest.importorskip("torch")
        tensors = batch.torch()
        assert tensors.extras["h"].shape == (4, 2)
        assert tensors.mask.shape == tensors.reward.shape == (4, 4)
        assert (tensors.mask.numpy() == batch.mask).all()
