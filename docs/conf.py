"""The documentation's site: `python -m sphinx -W docs site`, with pip install -e ".[docs]".

Pages are Markdown, which reads well on its own, too. The reference is made from the program: names from the rooms'
stubs, settings and commands from their classes.
"""

import ast
import builtins
import dataclasses
import inspect
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
import reference  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402
from sphinx.util.typing import stringify_annotation  # noqa: E402

from marlcore import errors  # noqa: E402
from marlcore.algos import ALGORITHMS  # noqa: E402
from marlcore.declared import Declared  # noqa: E402
from marlcore.field_docs import FieldsInDoc  # noqa: E402

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
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_search_summary = False  # which fetches pages: no browser allows that where there is no server
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


WHOLE: dict[str, list[str]] = {}  # texts of attributes and properties
ARRAY = re.compile(r"~?numpy\.ndarray\[tuple\[(?:~?typing\.)?Any, \.\.\.\], ~?numpy\.dtype\[([^\[\]]*)\]\]")
PUBLIC = {f"{kind.__module__}.{kind.__qualname__}": path for path, kind in reference.public_classes().items()}
MADE_FROM = {  # pages of the reference by the files that a checkout has instead; \2 is the first word of a link
    "config/config": "settings.md#the-run",
    "config/sections": r"settings.md#\2",
    "errors": "errors.md",
    "algos/parts_trainer": "parts.md",
}
ERRORS = {name for home in (builtins, errors) for name, kind in vars(home).items() if reference.is_error(kind)}


def plain(text: str) -> str:
    """Shapes such as [B, *shape] and names such as np.bool_ stand in docstrings: no emphasis and no link is meant."""
    parts = re.split(r"(`[^`]*`|\*\*\w[^*\n]*[\w.]\*\*)", text)
    text = "".join(part if i % 2 else re.sub(r"([*_])", r"\\\1", part) for i, part in enumerate(parts))
    text = re.sub(r"docs/([\w/-]+)\.md", r":doc:`/\1`", text)
    # Napoleon takes the first of several names for a type.
    return re.sub(r"^ +\w+(, \w+)+: ", lambda names: names[0].replace(", ", "/"), text, flags=re.M)


def separate(text: str) -> str:
    """A section of arguments or attributes with one of them on a line."""
    pattern = r"^( +)(.*?)(?<=\.) (?=[a-z]\w+: )"
    while text != (further := re.sub(pattern, r"\1\2\n\1", text, flags=re.M)):
        text = further
    return text


def raised(text: str) -> str:
    """A paragraph "Raises: LaneBusy: why. ValueError: why.", also one of several lines, as a field for each error."""
    rest = text.partition(":")[2]
    lines = [line for line in rest.split("\n") if line.strip()]
    indent = -1 if rest.split("\n")[0] else min(len(line) - len(line.lstrip()) for line in lines)
    items: list[str] = []
    for i, line in enumerate(lines):
        begins = i == 0 or len(line) - len(line.lstrip()) == indent
        items[len(items) - (not begins) :] = [line.strip() if begins else f"{items[-1]} {line.strip()}"]
    fields = []
    for part in (part for item in items for part in re.split(r"(?<=[.;]) (?=[A-Z]\w+(?:, [A-Z]\w+)*: )", item)):
        names, colon, why = part.partition(": ")
        if not colon or not all("." in name or name in ERRORS for name in names.split(", ")):
            return plain(text if indent >= 0 else " ".join(text.split()))
        fields += [f":raises {name}: {plain(why)}" for name in names.split(", ")]
    return "\n".join(fields)


def lexer(text: str) -> str:
    try:
        ast.parse(inspect.cleandoc(text.removeprefix("Example:")))
    except SyntaxError:
        return "text"
    return "python"


def plain_outside_code(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    if what == "class" and isinstance(vars(obj).get("__doc__"), FieldsInDoc):
        lines[:] = vars(obj)["__doc__"].text.split("\n")  # the site has the fields as members
    paragraphs, before, program = "\n".join(lines).split("\n\n"), "", False
    for i, text in enumerate(paragraphs):
        indented, head = text.startswith("    "), text.startswith("Example:\n")
        begins = head or (indented and i > 0 and not before.rpartition("\n")[2].startswith(" "))
        program = begins or (program and indented)
        if begins:
            paragraphs[i] = f".. code-block:: {lexer(text)}\n\n" + text.removeprefix("Example:\n")
        elif text.startswith("Raises:"):
            paragraphs[i] = raised(text)
        elif text.startswith("Returns: "):
            paragraphs[i] = plain(f":returns: {' '.join(text[9:].split())}")
        elif not program:
            paragraphs[i] = plain(separate(text) if text.startswith(("Args:", "Attributes:")) else text)
        before = text
    lines[:] = "\n\n".join(paragraphs).split("\n")
    if what in ("attribute", "property"):
        WHOLE[name] = list(lines)


def whole_attributes(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Napoleon takes an attribute's text up to its first colon for a type."""
    if what in ("attribute", "property"):
        lines[:] = WHOLE[name]


def short_signature(
    app: object, what: str, name: str, obj: object, options: object, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Drops arguments that no caller gives, and types that a dataclass's list of fields has."""
    if what == "class" and (getattr(obj, "_is_protocol", False) or (arguments or "").startswith("(segment:")):
        return "", None
    if what == "class" and dataclasses.is_dataclass(obj) and arguments:
        fields = inspect.signature(obj).parameters.values()
        shown = ", ".join(str(field.replace(annotation=field.empty)) for field in fields)
        return f"({shown.replace('<factory>', '...')})", None

    def own(word: re.Match[str]) -> str:
        homes = (getattr(obj, "__module__", ""), "marlcore")
        paths = [path for home in homes if (path := f"{home}.{word[0]}") in PUBLIC or path in PUBLIC.values()]
        return f"~{paths[0]}" if paths else word[0]

    def short(text: str | None) -> str | None:
        text = text and re.sub(r"(?<![\w.])[A-Z]\w+", own, text)  # quoted in the source, so without a module
        text = text and re.sub(r"marlcore(\.\w+)+", lambda path: PUBLIC.get(path[0], path[0]), text)
        text = text and ARRAY.sub(r"~numpy.typing.NDArray[\1]", text)
        return re.sub(r"~(\w+\.)*~?", "", text) if text and "Concatenate" in text else text  # Sphinx cannot parse it

    return short(arguments), short(returned)


def without_rules(kind: type) -> None:
    """Types of fields without the ranges that `Annotated` gives them, which are in their texts."""
    for base in kind.__mro__:
        if issubclass(base, Declared) and "__annotations__" in vars(base):
            hints = get_type_hints(base)
            base.__annotations__ = {name: hints[name] for name in base.__annotations__}


def short_arrays(kind: type) -> None:
    """Properties that are arrays say so as in the source; their signatures pass no event."""
    for thing in vars(kind).values():
        if isinstance(thing, property):
            notes = thing.fget.__annotations__
            with suppress(NameError):  # a type of another library, which is imported for checkers alone
                said = stringify_annotation(get_type_hints(thing.fget)["return"])
                if "ndarray" in said:
                    notes["return"] = ARRAY.sub(r"NDArray[\1]", said).replace("numpy.", "")


def sidebar(index: str) -> str:
    """The navigation, by the rows of the table on the first page; the reference stands beside the options."""
    text = ""
    for caption, row in re.findall(r"^\| \*\*(.+?)\*\* \|(.*)", index, re.M):
        pages = re.findall(r"\]\(([\w/-]+)\.md\)", row)
        pages += [f"reference/{name}" for name in reference.PAGES if name != "contributing"] * ("options" in pages)
        text += "\n```{toctree}\n" + "\n".join([f":caption: {caption}", ":hidden:", *pages]) + "\n```\n"
    return text


def site_source(app: object, name: str, source: list[str]) -> None:
    """A page as the site has it, with titles and the reference where a checkout shows names of files and the source."""
    text = source[0].replace("](../CONTRIBUTING.md", "](reference/contributing.md")
    for path, page in MADE_FROM.items():
        text = re.sub(rf"(\[`?(\w+)[^]]*\])\((?:\.\./)+marlcore/{path}\.py\)", rf"\1(/reference/{page})", text)
    text = re.sub(r"\[[\w-]+\.md\]\(([\w/.-]+\.md)", r"[](\1", text)
    folder, _, page = name.rpartition("/")
    if name == "index":
        text += sidebar(text)
    elif folder == "algorithms":
        kind = ALGORITHMS.get(page)
        listed = "\n".join(["```{toctree}", ":hidden:", *sorted(ALGORITHMS), "```"])
        text += "\n" + (reference.parameters_table(kind) if kind else listed) + "\n"
    source[0] = text


def breakable_names(app: object, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Lets names of code break behind their marks, where the stylesheet allows it."""

    def broken(code: re.Match[str]) -> str:
        return re.sub(r"(?<=[\w)][_./(=,:-])(?=\w)", "<wbr>", code[0])

    context["body"] = re.sub(r'(?<=<span class="pre">)[^<]+', broken, context.get("body") or "")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_outside_code, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-docstring", whole_attributes, priority=600)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("source-read", site_source)
    app.connect("html-page-context", breakable_names)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    reference.write(Path(__file__).parent / "reference")
    for kind in reference.public_classes().values():
        without_rules(kind)
        short_arrays(kind)
