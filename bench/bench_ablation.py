"""The comparison of `python -m bench.ablation`, once, on few steps."""

import pytest

from bench.ablation import SIDES, Catch, run
from marlcore.testing import check_env


def test_catch_keeps_the_interface() -> None:
    check_env(Catch, steps=300)


@pytest.mark.long
def test_both_sides_make_the_same_updates() -> None:
    updates = [run(side, seed=0, steps=1500)[2] for side in SIDES]
    assert updates[0] == updates[1] > 50
