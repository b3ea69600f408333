"""Check the links of the Markdown pages: to files, to headings, and to this repository by its absolute address.

`python tools/links.py` looks at the README and docs/; `python tools/links.py --site` at the HTML that `make docs`
built, in which the pages of the API reference are complete. It never goes to the network: links to other places are not
looked at. Exit code 1 when a link is broken.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2", re.S | re.M)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.M)
ANCHOR = re.compile(r"\{ *#([\w-]+) *\}|<a (?:id|name)=\"([^\"]+)\"|^::: +([\w.]+)", re.M)
REFERENCE = "docs/reference"


def repository() -> str:
    """Return the address of the repository, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and Python-Markdown make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(page: Path) -> set[str]:
    """Return what a link into this page may name."""
    text = FENCE.sub("", page.read_text())
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(text):
        one = slug(heading)
        names.add(one if one not in found else f"{one}_{found[one]}")
        found[one] = found.get(one, 0) + 1
    return names | {name for groups in ANCHOR.findall(text) for name in groups if name}


def pages() -> list[Path]:
    """Return the pages that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]


def links(page: Path) -> Iterator[str]:
    """Return where a page links to."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    yield from LINK.findall(text)
    yield from re.findall(r"\]\((https?://[^)\s]+)\)", text)  # also those around a picture


def broken(page: Path, link: str, home: str) -> str:
    """Return what is wrong with a link, or nothing."""
    raw = home.replace("github.com", "raw.githubusercontent.com")
    for prefix in (f"{home}/blob/main/", f"{home}/tree/main/", f"{raw}/main/"):
        if home and link.startswith(prefix):
            page, link = ROOT / "x", link[len(prefix) :]
            break
    target = urlsplit(link)
    if target.scheme or link.startswith("//"):
        return ""
    path = (page.parent / unquote(target.path)).resolve() if target.path else page.resolve()
    if not path.exists():
        return "there is no such file"
    if target.fragment and path.suffix == ".md" and unquote(target.fragment) not in anchors(path):
        return "there is no such heading"
    return ""


def faults() -> list[str]:
    """Return the broken links of all pages."""
    home = repository()
    return [
        f"{page.relative_to(ROOT)}: {link}: {wrong}"
        for page in pages()
        for link in dict.fromkeys(links(page))
        if (wrong := broken(page, link, home))
    ]


def site_faults() -> list[str]:
    """Return the broken links of the site that was built."""
    texts = {page.resolve(): page.read_text() for page in SITE.rglob("*.html")}
    ids = {page: set(re.findall(r"\bid=\"?([^\"\s>]+)", text)) for page, text in texts.items()}
    found = []
    for page, text in texts.items():
        if page.name == "404.html":
            continue
        for link in dict.fromkeys(re.findall(r"\b(?:href|src)=\"?([^\"\s>]+)", text)):
            target = urlsplit(unescape(link))
            if target.scheme or link.startswith("//"):
                continue
            path = (page.parent / unquote(target.path)).resolve() if target.path else page
            path = path / "index.html" if path.is_dir() else path
            if not path.exists():
                found.append(f"{page.relative_to(SITE.resolve())}: {link}: there is no such file")
            elif target.fragment and path in ids and unquote(target.fragment) not in ids[path]:
                found.append(f"{page.relative_to(SITE.resolve())}: {link}: there is no such heading")
    return found


def main() -> int:
    wrong = site_faults() if "--site" in sys.argv else faults()
    for line in wrong:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
