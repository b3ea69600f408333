"""URLs, as people may see them."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(://[^/?#@:]*:).*@")  # up to the last "@": a password may contain anything
_OPTION = re.compile(
    r"([?&;][^=&;]*(?:pass|pwd|secret|token|credential|api_?key)(?![^=&;]*_env=)[^=&;]*=)[^&;#]*", re.I
)


def shown(url: object) -> str:
    """Return a URL without its secrets: the password before the host, and options that are named like one."""
    text = url.decode(errors="replace") if isinstance(url, bytes) else str(url)
    return _PASSWORD.sub(r"\1***@", _OPTION.sub(r"\1***", text))
