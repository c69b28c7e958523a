"""The documentation's site: `python -m sphinx -W docs site`, with pip install ".[docs]".

Pages are Markdown, which reads well on its own, too. The reference is made from the program: names from the rooms'
stubs, settings from their classes, commands from their --help.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
import reference  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

project = "marlcore"
author = copyright = "The marlcore authors"
release = version = reference.version()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"marlcore {version}"
html_static_path: list[str] = []
exclude_patterns = ["reference/parameters/*"]  # parts of other pages
templates_path: list[str] = []
default_role = "code"  # docstrings mark code by single backticks, as Markdown does
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_attr_annotations = False  # signatures have them
python_use_unqualified_type_names = True
copybutton_prompt_text = "$ "


OF_ATTRIBUTES: dict[str, list[str]] = {}


def plain(text: str) -> str:
    """Shapes such as [B, *shape] and names such as np.bool_ stand in docstrings: no emphasis and no link is meant."""
    parts = re.split(r"(`[^`]*`|\*\*\w[^*\n]*[\w.]\*\*)", text)
    text = "".join(part if i % 2 else re.sub(r"([*_])", r"\\\1", part) for i, part in enumerate(parts))
    # Napoleon takes the first of several names for a type.
    return re.sub(r"^ +\w+(, \w+)+: ", lambda names: names[0].replace(", ", "/"), text, flags=re.M)


def plain_outside_code(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    paragraphs, before, program = "\n".join(lines).split("\n\n"), "", False
    for i, text in enumerate(paragraphs):
        indented, head = text.startswith("    "), text.startswith("Example:\n")
        begins = head or (indented and i > 0 and not before.rpartition("\n")[2].startswith(" "))
        program = begins or (program and indented)
        if begins:
            paragraphs[i] = ".. code-block:: python\n\n" + text.removeprefix("Example:\n")
        elif not program:
            paragraphs[i] = plain(text)
        before = text
    lines[:] = "\n\n".join(paragraphs).split("\n")
    if what == "attribute":
        OF_ATTRIBUTES[name] = list(lines)


def whole_attributes(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Napoleon takes an attribute's text up to its first colon for a type."""
    if what == "attribute":
        lines[:] = OF_ATTRIBUTES[name]


def links_out_of_the_site(app: object, name: str, source: list[str]) -> None:
    source[0] = source[0].replace("](../CONTRIBUTING.md", "](reference/contributing.md")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_outside_code, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-docstring", whole_attributes, priority=600)
    app.connect("source-read", links_out_of_the_site)
    reference.write(Path(__file__).parent / "reference")
