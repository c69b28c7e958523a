"""A save that was damaged is refused; one that was used in place since is taken as it is."""

from __future__ import annotations

import random

import numpy as np
import pytest

import marlcore as mc

SPEC = mc.TransitionSpec(obs=mc.Field((3,)), action=mc.Field((), "int64"))


def saved(path):
    with mc.ReplayBuffer.create(SPEC, 64, lanes=2) as replay:
        with replay.writer() as writer:
            for i in range(10):
                writer.add(np.full(3, i, np.float32), i, 1.0, terminated=i % 5 == 4)
        replay.save(path, replay.sampler(4, prioritized=mc.Prioritized()))
    return path


def test_a_save_with_any_bit_flipped_is_refused(tmp_path):
    path = saved(tmp_path / "save")
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))  # padding follows the checksum
    chance = random.Random(0)
    for at in [*chance.sample(range(end), 40), end - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(mc.SegmentCorrupt, match=str(path)):
            mc.ReplayBuffer.load(path)
    path.write_bytes(whole)
    with mc.ReplayBuffer.load(path, SPEC) as replay:
        assert len(replay) == 10 and replay.sampler_state is not None


def test_a_save_used_in_place_is_loaded_with_what_was_added(tmp_path):
    path = saved(tmp_path / "save")
    with mc.ReplayBuffer.attach(path) as replay, replay.writer() as writer:
        writer.add(np.zeros(3, np.float32), 0, 1.0)
    with mc.ReplayBuffer.load(path) as replay:
        assert len(replay) == 11
        replay.save(tmp_path / "again")
    with mc.ReplayBuffer.load(tmp_path / "again") as replay:
        assert len(replay) == 11
