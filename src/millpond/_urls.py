"""URLs, as people may see them."""

from __future__ import annotations

import re


def shown(url: object) -> str:
    """Return a URL without its password."""
    text = str(url)
    return re.sub(r"(://[^/?#@]*?:)[^@]*@", r"\1***@", re.sub(r"([?&]password=)[^&]*", r"\1***", text))
