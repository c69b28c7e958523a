"""Batches of sequences, [B, T], against the oracle of plain Python lists."""

import model
import numpy as np
import pytest
from model import Model, fill

from marlcore import Field, NotEnoughData, Prioritized, ReplayBuffer, Sequence, TransitionSpec
from marlcore.kernels import rows as row_kernels
from marlcore.transitions import ReadPlan

EVERY = 4
SCALAR = TransitionSpec(Field(), Field((), "int64"))
STATE = TransitionSpec(Field(), Field((), "int64"), {"h": Field((2,), every=EVERY)})

SPECS = model.SPECS | {
    "states": TransitionSpec(
        {"image": Field((9, 31), "uint8"), "speed": Field((3,))},
        Field((), "int64"),
        {"h": Field((5,), every=EVERY), "c": Field((99,), "float64", every=EVERY), "log_prob": Field()},
    )
}
SHAPES = {
    1: [Sequence(1), Sequence(5), Sequence(5, 2), Sequence(5, 2, 5), Sequence(5, 0, 9), Sequence(8, 3, 2),
        Sequence(4, 3, 1), Sequence(13, 4)],
    EVERY: [Sequence(4), Sequence(6, 2), Sequence(8, 0, 4), Sequence(3, 1, 8), Sequence(12, 4), Sequence(2, 1, 12)],
}  # fmt: skip
WINDOWS = [(1, 1, "repeat"), (3, 2, "repeat"), (5, 7, "zero"), (4, 1, "zero"), (1, 3, "repeat")]
# A row's layout changes which windows are allowed only if it stores states, or has next observations of its own.
LAYOUTS = {"vector": 5, "states": 5, "frame": 3, "odd sizes": 3, "next_obs": 1}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(21)


def write(replay: ReplayBuffer, rows: int, *last: int) -> None:
    """Adds rows of episodes that end at the tickets `last`; the observation is the ticket."""
    with replay.writer() as writer:
        for ticket in range(rows):
            extras = {"h": np.full(2, ticket)} if "h" in replay.spec.extras else {}
            writer.add(float(ticket), ticket, 1.0, terminated=ticket in last, **extras)


@pytest.mark.long
@pytest.mark.parametrize("prioritized", [None, Prioritized()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize(
    ("name", "stack", "n_step", "pad"), [(name, *window) for name in SPECS for window in WINDOWS[: LAYOUTS[name]]]
)
def test_every_allowed_window_is_drawn_as_the_oracle_says(name, stack, n_step, pad, prioritized):
    """The windows are single transitions and sequences."""
    spec, rng = SPECS[name], np.random.default_rng(len(name) + 10 * stack + 100 * n_step + bool(prioritized))
    with ReplayBuffer.create(spec, 3 * 36, lanes=3) as replay:
        oracle = Model(spec, 3, 36)
        fill(replay, oracle, rng, [100, 19, 45], end=rng.choice([0.02, 0.1, 0.5]))
        assert len(replay) == len(oracle)
        for sequence in [None, *([] if spec.next_obs else SHAPES[spec.state_every])]:
            window = {"stack": stack, "n_step": n_step, "gamma": 0.9, "pad": pad, "sequence": sequence}
            sampler = replay.sampler(16, seed=3, min_size=1, prioritized=prioritized, **window)
            allowed = oracle.sampleable(stack, n_step, sequence)
            assert len(allowed) > 2
            seen: set[int] = set()
            for _ in range(12 * len(allowed) // 16 + 1):
                seen.update(oracle.check(sampler.sample(), allowed=allowed, **window))
            assert seen == set(allowed), sequence


def test_the_oracle_notices_options_that_are_off_by_one(rng):
    """This is the positive control of the test above: a period, burn-in or length is off by one."""
    with ReplayBuffer.create(SPECS["vector"], 32) as replay:
        oracle = Model(SPECS["vector"], 1, 32)
        fill(replay, oracle, rng, [60], end=0.05)
        batch = replay.sampler(64, sequence=Sequence(5, 2), min_size=1, seed=0).sample()
        oracle.check(batch, sequence=Sequence(5, 2))
        for wrong in (Sequence(5, 2, 4), Sequence(5, 1, 3), Sequence(4, 1)):
            with pytest.raises((AssertionError, IndexError)):
                oracle.check(batch, sequence=wrong)


def test_without_a_period_each_transition_is_trained_on_once():
    with ReplayBuffer.create(SCALAR, 40) as replay:
        write(replay, 14, 13)
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


@pytest.mark.parametrize(("n_step", "lengths"), [(1, {0: 5, 5: 1}), (3, {0: 4})])
def test_a_sequence_ends_at_a_seam(n_step, lengths):
    """Where a writer was replaced, a sequence ends with the last whole return."""
    with ReplayBuffer.create(SCALAR, 40) as replay:
        write(replay, 7)
        write(replay, 2)  # rows behind the seam show that nothing more comes
        sampler = replay.sampler(64, sequence=Sequence(5, period=5), n_step=n_step, min_size=1, seed=0)
        batch = sampler.sample()
        assert dict(zip(batch.index.tolist(), batch.mask.sum(1).tolist(), strict=True)) == lengths


def test_an_episode_longer_than_any_age_has_sequences():
    """After 2^24 rows, ages continue at about 2^23, at the same place between stored states."""
    with ReplayBuffer.create(STATE, 16) as replay, replay.writer() as writer:
        writer._native.raw.age = 2**24 - 6
        for ticket in range(16):
            writer.add(float(ticket), ticket, 1.0, h=np.full(2, ticket))
        sampler = replay.sampler(64, sequence=Sequence(4), min_size=1, seed=0)
        batch = sampler.sample()
        # 2^24 - 4, where a state is stored, is 2 rows on.
        assert sorted(set(batch.index.tolist())) == [2, 6, 10]
        assert (batch.extras["h"][:, 0] == batch.index).all()


@pytest.mark.parametrize("prioritized", [None, Prioritized()], ids=["uniform", "prioritized"])
def test_a_state_that_is_overwritten_while_copied_is_redrawn(prioritized, monkeypatch):
    with ReplayBuffer.create(STATE, 12) as replay:
        write(replay, 15, 2)
        sequence = Sequence(3, period=4)
        sampler = replay.sampler(32, sequence=sequence, min_size=1, seed=0, prioritized=prioritized)
        validate, first = ReadPlan.lapped, []

        def overwrite_and_validate(read_plan: ReadPlan, filled: int):
            if not first:
                first.extend(read_plan.chosen[row_kernels.TICKET, :filled].tolist())
                write(replay, 2)  # 3 and 4, and with 4 the state of 7
            return validate(read_plan, filled)

        monkeypatch.setattr(ReadPlan, "lapped", overwrite_and_validate)
        batch = sampler.sample()
        assert set(first) == {3, 7, 11}
        assert set(batch.index.tolist()) == {11} and (batch.extras["h"] == 11).all()
        assert sampler.stats.lapped == sum(ticket != 11 for ticket in first)


def test_stored_states_come_with_sequences_alone_as_tensors_too():
    with ReplayBuffer.create(STATE, 12) as replay:
        write(replay, 12)
        assert replay.sampler(4).sample().extras == {}
        batch = replay.sampler(4, sequence=Sequence(4, 1, 4)).sample()
        pytest.importorskip("torch")
        tensors = batch.torch()
        assert tensors.extras["h"].shape == (4, 2)
        assert tensors.mask.shape == tensors.reward.shape == (4, 4)
        assert (tensors.mask.numpy() == batch.mask).all()
