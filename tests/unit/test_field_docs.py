"""The strings below fields reach `help`, of a class, its heirs, and one without them."""

import pydoc
from dataclasses import dataclass

from marlcore.declared import Declared
from marlcore.field_docs import field_docs


@dataclass(frozen=True)
class Loop(Declared):
    """Settings of a loop."""

    steps: int = 1
    """Steps of the loop,
    all in all."""
    seed: int = 0


@dataclass(frozen=True)
class Slow(Loop):
    steps: int = 2
    pause: float = 0.5
    """Seconds between two steps."""


def test_help_lists_the_fields_with_the_strings_below_them():
    shown = "Settings of a loop.\n |  \n |  Attributes:\n |      steps: Steps of the loop, all in all.\n |  \n"
    assert shown in pydoc.render_doc(Loop, renderer=pydoc.plaintext)
    assert Loop().__doc__ == Loop.__doc__


def test_an_heir_has_the_strings_of_its_base_and_its_own():
    assert field_docs(Slow) == {"steps": "Steps of the loop, all in all.", "pause": "Seconds between two steps."}


def test_a_class_without_its_source_keeps_its_own_text():
    made: dict[str, type] = {}
    exec('@dataclass\nclass Made(Declared):\n    """Made."""\n    steps: int = 1\n    """No file."""', globals(), made)
    assert made["Made"].__doc__ == "Made."
