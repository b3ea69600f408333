"""Links of the README and the docs lead somewhere, and pictures and links of the README are absolute, for PyPI."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("links", ROOT / "tools" / "links.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


links = load()


def test_no_link_is_broken():
    assert links.faults() == []


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("there.md", ""),
        ("there.md#a-heading", ""),
        ("there.md#no-heading", "there is no such heading"),
        ("nowhere.md", "there is no such file"),
        ("#here", "there is no such heading"),
        ("https://example.org/x", ""),
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, link: str, wrong: str):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n[a link]({link})\n\n```python\n# Here\n[no link](nowhere.md)\n```\n")
    (tmp_path / "there.md").write_text("# A `heading`\n")
    assert set(links.links(page)) == {link}
    assert links.broken(page, link, "") == wrong


def test_links_of_the_readme_are_absolute():
    relative = [link for link in links.links(ROOT / "README.md") if not re.match(r"https://|#", link)]
    assert relative == []


def test_the_readme_and_the_project_name_one_repository():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert links.repository() in (ROOT / "README.md").read_text()
    assert all(address.startswith("https://") for address in urls.values())


def test_every_page_for_users_is_in_the_navigation():
    nav = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert [page for page in nav if not (ROOT / "docs" / page).exists()] == []
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    hidden = {page for page in pages if page.startswith("decisions/")} | {"parity.md", "design.md"}
    assert pages - hidden - set(nav) == set()


def test_the_tool_says_what_is_wrong():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "links.py")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
