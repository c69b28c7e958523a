"""Saving and loading while another process adds, by marlcore and by a pickle under a lock."""

from __future__ import annotations

import pytest

from .save_work import LIBRARIES, measure_saves
from .work import Scale


@pytest.mark.parametrize("library", LIBRARIES)
def test_save(library: str, scale: Scale) -> None:
    """A writer in another process adds while this process saves."""
    figures = measure_saves(library, scale.frames, rounds=1)
    assert figures.nbytes > scale.frames * 84 * 84
    assert min(figures.save_s, figures.load_s, figures.longest_add_s, figures.longest_add_saving_s) > 0
