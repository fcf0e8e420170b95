"""What the site has beyond the pages of docs/: the README as its first page, notebooks, gallery, reference, examples.

mkdocs calls `on_files` once with the files of docs/ and `on_page_markdown` for each page. Links of the pages are
written for readers of the repository; here they are turned to where the site has the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

import flare

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")

GROUPS = {
    "Scheduling": ("RoundProblem", "solve", "solve_many", "Schedule", "Status", "Choice", "admit", "POLICIES"),
    "The cell": ("Cell", "CELLS", "round_problem"),
    "Runs": ("simulate", "compare", "load", "Run", "Runs", "tune"),
    "Code of your own": ("policy", "method", "codec", "air_scheme", "model", "dataset", "stream"),
}
"""The public names in the order in which a reader meets them."""

STYLE = """:root, [data-md-color-scheme] {
  --md-primary-fg-color: #00527f; --md-primary-bg-color: #ffffff; --md-accent-fg-color: #0072b2;
}
[data-md-color-scheme="slate"] { --md-typeset-a-color: #56b4e9; --md-accent-fg-color: #e69f00; }
.md-grid { max-width: 72rem; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 1rem; }
.gallery img { background: white; }
.md-typeset table.cards:not([class*=" "]) { display: block; border: none; font-size: inherit; overflow: visible; }
.md-typeset table.cards thead { position: absolute; clip-path: inset(50%); }
.md-typeset table.cards tbody, .md-typeset table.cards tr { display: block; }
.md-typeset table.cards tr { border: .05rem solid var(--md-typeset-table-color); border-radius: .2rem; margin: 0 0 1rem;
  padding: .6rem .8rem; }
.md-typeset table.cards tbody tr:hover { background: none; box-shadow: none; }
.md-typeset table.cards td { display: grid; grid-template-columns: 9rem 1fr; gap: .8rem; border: none; min-width: 0;
  padding: .2rem 0 !important; }
.md-typeset table.cards td::before { content: attr(data-label); color: var(--md-default-fg-color--light); }
.md-typeset table.cards td:first-child { font-weight: 700; }
@media screen and (max-width: 40rem) { .md-typeset table.cards td { grid-template-columns: 1fr; gap: 0; } }
"""


def place_on_site(target: str) -> str:
    """Where the site has a file of the repository: pages of docs/ at its root, notebooks as pages, all else by path."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target.startswith("examples/") and target.endswith(".ipynb"):
        return f"notebooks/{Path(target).stem}.md"
    return "index.md" if target == "README.md" else target


def targets(markdown: str, home: str) -> list[str]:
    """The files of the repository that a page links to; `home` is where the page stands there."""
    return [posixpath.normpath(posixpath.join(posixpath.dirname(home), name)) for name in LINK.findall(markdown)]


def turned(markdown: str, home: str, page: str) -> str:
    """The page of the repository with its links as they must be on the site, where it is called `page`."""
    found = iter(targets(markdown, home))
    return LINK.sub(lambda _: posixpath.relpath(place_on_site(next(found)), posixpath.dirname(page) or "."), markdown)


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook, run from top to bottom in a folder of its own, as Markdown, and the pictures it shows."""
    book = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        runner: Any = NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}})
        runner.extra_arguments = ["--log-level=ERROR"]  # it warns of every kernel that it listens on this machine
        runner.execute()
    for cell in book.cells:  # a page shows pictures and text; what a notebook shows as HTML it shows as text, too
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("text/html", None)
        if "outputs" in cell:
            cell.outputs = [each for each in cell.outputs if "display.HTML" not in str(each.get("data"))]
    text, found = MarkdownExporter().from_notebook_node(book, {"output_files_dir": path.stem, "unique_key": path.stem})
    return text, found.get("outputs", {})


def gallery(pictures: list[Path]) -> str:
    """A page with every figure of the results, each a link to its full size."""
    lines = ["---", "hide: [toc]", "---", "", "# Gallery", ""]
    lines += ["Every figure of [the results](results.md), drawn by `flare reproduce`.", ""]
    lines += ["![The studio: a device is dragged, the deadline moved, two policies compared](studio.gif)", ""]
    lines += ['<div class="gallery" markdown>', ""]
    for picture in pictures:
        name = f"results/figures/{picture.name}"
        lines += [f"[![{picture.stem}]({name})]({name})", ""]
    return "\n".join([*lines, "</div>", ""])


def reference() -> str:
    """A page with the docstring of every public name of the package."""
    named = [name for names in GROUPS.values() for name in names]
    if sorted(named) != sorted(flare.__all__):
        raise ValueError(f"the reference lacks, or has too much: {sorted(set(named) ^ set(flare.__all__))}")
    lines = ["# Reference", "", "What `import flare` offers, and the strategy for Flower.", ""]
    for group, names in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in names:
            lines += [f"::: flare.{name}", ""]
    return "\n".join([*lines, "## Flower", "", "::: flare.flower.FlareStrategy", ""])


def on_files(files: Files, config: Any) -> Files:
    """Add what docs/ does not have: pages that are made, and the files of the repository that pages link to."""

    def add(name: str, content: str | bytes) -> None:
        files.append(File.generated(config, name, content=content))

    add("index.md", turned((ROOT / "README.md").read_text(), "README.md", "index.md"))
    add("gallery.md", gallery(sorted((ROOT / "docs/results/figures").glob("*.png"))))
    add("reference.md", reference())
    add("site.css", STYLE)
    add("iframe-worker.js", (ROOT / "website/iframe-worker.js").read_text())
    for path in NOTEBOOKS:
        text, pictures = notebook_page(path)
        add(f"notebooks/{path.stem}.md", text)
        for name, content in pictures.items():
            add(f"notebooks/{name}", content)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    linked = {each for page in pages for each in targets(page.read_text(), page.relative_to(ROOT).as_posix())}
    for name in sorted(linked):
        if not name.startswith("docs/") and place_on_site(name) == name and (ROOT / name).is_file():
            add(name, (ROOT / name).read_bytes())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The links of a page of docs/, turned to the site; pages made here have theirs already."""
    if page.file.generated_by is not None:
        return markdown
    return turned(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
