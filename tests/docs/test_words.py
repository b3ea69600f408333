"""The docs speak the language of their readers: terms that people search for, and a process that is "it"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
TERMS = (
    "idempotent",
    "back-pressure",
    "rate limit",
    "fencing token",
    "leader election",
    "graceful shutdown",
    "distributed lock",
    "autoscal",
    "monitoring",
    "at-least-once",
    "visibility timeout",
    "liveness",
    "health check",
    "fifo",
    "job queue",
    "dead letter queue",
    "webhook",
    "llm",
    "singleton",
    "throttle",
    "mutual exclusion",
    "head-of-line",
    "thundering herd",
)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_that_people_search_for_is_in_the_docs(term: str):
    assert any(term in page.read_text().lower() for page in PAGES)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_calls_a_process_he(page: Path):
    found = re.findall(r"^.*\b(?:[Hh]e|[Hh]is|[Hh]im|[Hh]imself)\b.*$", page.read_text(), re.M)
    assert found == []
