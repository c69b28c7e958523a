"""The documentation's site and pages: programs compile, links have targets, and no forbidden word occurs."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from browser import CHROMIUM, browser
from pages import ROOT, programs_of

import marlcore as mc

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import reference  # noqa: E402

WRITTEN = DOCS / "reference"  # by reference.py, from docstrings, and checked by the site's build
FOLDERS = (DOCS, ROOT / "examples", ROOT / "tests")
FOUND = {*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))}
PAGES = {str(page.relative_to(ROOT)): page for page in sorted(FOUND) if WRITTEN not in page.parents}
FORBIDDEN = ("goes on", "came of", "is not without", "nobody", "whoever")


def test_every_program_on_a_page_compiles() -> None:
    for name, page in PAGES.items():
        for number, program in enumerate(programs_of(page)):
            compile(program.code, f"{name}:{number}", "exec")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs sphinx: pip install marlcore[docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", str(DOCS), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long  # half a minute
def test_the_site_builds_and_has_every_public_name(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    with open(site / "objects.inv", "rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    named = {name for kind in ("py:class", "py:function", "py:exception") for name in inventory.get(kind, {})}
    assert [name for name in dir(mc) if f"marlcore.{name}" not in named and name != "cluster"] == []
    assert reference.public_classes().keys() - named == set()


# The texts of a page whose colors differ by less than WCAG 2 asks of them, and by how much the page is too wide.
UNREADABLE = """(() => {
  const rgba = (color) => [...color.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (a, b) => [...[0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])), 1];
  const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]) + 0.05;
  const color = (e, name) => rgba(getComputedStyle(e)[name]);
  const seen = new Map([[null, [255, 255, 255, 1]]]);
  const place = (e) => seen.set(e, over(color(e, "backgroundColor"), behind(e.parentElement)));
  const behind = (e) => seen.get(e) ?? place(e).get(e);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const ground = behind(element), ink = over(color(element, "color"), ground);
    const [dark, bright] = [light(ink), light(ground)].sort((a, b) => a - b);
    if (bright / dark < 4.5) found.push(text);
  }
  return found;
})()"""
NARROWED = "index", "dqn", "genindex", "search", "zoo", "performance", "how-it-works", "bad"  # templates, wide content
TOO_WIDE = "Math.max(0, document.documentElement.scrollWidth - innerWidth)"


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_every_page_is_readable_in_a_browser(site: Path, tmp_path: Path) -> None:
    """On a screen, by day and by night; one of each template, and those with the widest tables, pictures and code, also
    at the widths of a phone and a tablet, where what is too wide scrolls within the page. The console says nothing.
    """
    (site / "bad.html").write_text('<body style="color: #999; width: 2000px">pale<script>console.log(missing)</script>')
    with browser(tmp_path) as page:
        for path in sorted(site.rglob("*.html")):
            page.resize(1440)  # before the page is laid out
            page.open(path.as_uri())
            faults: set[str] = {*page.said}
            for scheme in ("light", "dark"):
                page.prefer(scheme)
                faults |= {*page.value(UNREADABLE)}
            for width in (1440, 390, 768) if path.stem in NARROWED else (1440,):
                page.resize(width)
                faults |= {f"too wide at {width}"} if page.value(TOO_WIDE) else set()
            page.said.clear()
            assert len(faults) == 5 * (path.name == "bad.html"), (path.name, faults)  # the control, and all others


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_the_search_of_the_site_finds_pages(site: Path, tmp_path: Path) -> None:
    ended = "/finished|did not match/.test(document.body.innerText)"
    titles = "[...document.querySelectorAll('#search-results li a')].map((link) => link.innerText)"
    with browser(tmp_path) as page:
        page.open(f"{(site / 'search.html').as_uri()}?q=embed+replay")
        page.value(f"new Promise((done) => setInterval(() => {ended} && done(), 20))")
        assert "Embed a replay" in page.value(titles) and page.said == []


def prose(page: Path) -> str:
    """A page without its programs."""
    return re.sub(r"^( *)(`{3,}|:{3,})[^\n]*\n.*?^\1\2`*$", "", page.read_text(), flags=re.M | re.S)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?)(?: \"[^\"]*\")?\)", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    seen: Counter[str] = Counter()
    found = set()
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", prose(page), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken(page: Path) -> list[str]:
    """The links within the repository that lead nowhere."""
    found = []
    for link in links(page):
        if urlsplit(link).scheme:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        known = target.exists() and WRITTEN not in target.parents
        known = known and (not anchor or (target.suffix == ".md" and anchor in anchors(target)))
        found += [] if known else [link]
    return found


def malformed(page: Path) -> list[str]:
    """The links to elsewhere that are no https addresses."""
    outside = [link for link in links(page) if urlsplit(link).scheme]
    outside += re.findall(r"(?<![(`\"\w])https?:[^\s)>`\"]+", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [link for link in outside if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[^\s<>]*)?", link)]


def unnamed(page: Path) -> list[str]:
    """The pictures without an alternative text."""
    return re.findall(r"!\[\s*\]\([^)]*\)", prose(page))


def raw(page: Path) -> list[str]:
    """What a repository shows as it stands: directives and roles of MyST, and anchors of its own."""
    return re.findall(r"^ *(?:`{3,}|:{3,})\{[^\n]*|(?<!`)\{[\w:-]+\}`[^`\n]*`|^\([\w-]+\)=$", page.read_text(), re.M)


def wide(page: Path) -> list[str]:
    """The lines of programs that do not fit the site: at 1440 pixels there is room for 120 columns."""
    blocks = re.findall(r"^( *)(`{3,})[^\n]*\n(.*?)^\1\2`*$", page.read_text(), flags=re.M | re.S)
    return [line for *_, code in blocks for line in code.split("\n") if len(line) > 120]


def forbidden(page: Path) -> list[str]:
    """The lines with a word that the style forbids."""
    lines = re.sub(r"`[^`\n]*`", "", prose(page)).lower().split("\n")
    return [line for line in lines if re.search(rf"\b(?:{'|'.join(FORBIDDEN)})\b", line)]


@pytest.mark.parametrize("faults", [broken, malformed, unnamed, raw, wide, forbidden])
def test_no_page_has_a_fault(faults: Callable[[Path], list[str]]) -> None:
    assert {name: found for name, page in PAGES.items() if (found := faults(page))} == {}


def test_a_picture_is_whole_by_itself_and_on_a_page() -> None:
    pages = "".join(page.read_text() for page in PAGES.values())
    for path in sorted((DOCS / "pictures").glob("*.svg")):
        text = path.read_text()
        assert ElementTree.fromstring(text)[0].text  # its title
        assert re.findall(r"https?://|@import|url\((?!#)", text) == ["http://"]  # the namespace
        assert f"pictures/{path.name})" in pages


def test_what_a_checkout_cannot_show_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    written = WRITTEN / "settings.md"  # which the site's build makes
    page.write_text(f"# A `b`, c\n\n[x](#a-b-c) [y](#missing) [z](o.md)\n```sh\n[no](link.md)\n```\n[w]({written})\n")
    assert broken(page) == ["#missing", "o.md", str(written)]
    page.write_text("```{include} other.md\n```\n\n{py:class}`marlcore.Config`, `{a}` and `b`\n```python\n{1}\n```\n")
    assert raw(page) == ["```{include} other.md", "{py:class}`marlcore.Config`"]
