"""What a `temporal:` URL says."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from millpond._urls import shown

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.converter import DataConverter

TASK_QUEUE: Final = "millpond"
"""Where the workers that host pools listen."""
PREFIX: Final = "millpond:"
"""What the id of a pool's workflow begins with; its name follows."""
_OPTIONS: Final = ("task_queue", "prefix", "tls", "api_key_env", "data_converter")
_YES_NO: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Address:
    """A namespace of a Temporal server, and how pools are found there."""

    target: str
    namespace: str = "default"
    task_queue: str = TASK_QUEUE
    prefix: str = PREFIX
    tls: bool | None = None
    api_key_env: str = ""
    converter: str = ""

    def options(self) -> dict[str, Any]:
        """Return what `Client.connect` needs besides the target."""
        options: dict[str, Any] = {"namespace": self.namespace}
        if self.tls is not None:
            options["tls"] = self.tls
        if self.api_key_env:
            key = os.environ.get(self.api_key_env)
            if not key:
                raise ValueError(f"the environment has no {self.api_key_env}, which is to hold Temporal's API key")
            options["api_key"] = key
        if self.converter:
            options["data_converter"] = _find(self.converter)
        return options

    async def connect(self, **options: Any) -> Client:
        """Connect; with `lazy`, as late as the first call."""
        from temporalio.client import Client  # noqa: PLC0415  (parsing a URL must not need the package)

        return await Client.connect(self.target, **self.options(), **options)


def parse(url: str) -> Address:
    """Read `temporal://host:port/namespace?task_queue=…&prefix=…&tls=…&api_key_env=…&data_converter=module:name`."""
    parts = urlsplit(url)
    try:
        port = parts.port or 7233
    except ValueError as error:
        raise ValueError(f"{shown(url)!r}: {error}") from None
    if parts.scheme != "temporal" or not parts.hostname or parts.username or "/" in parts.path[1:]:
        raise ValueError(f"{shown(url)!r} does not name a server: write temporal://host:port/namespace")
    options: dict[str, Any] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key not in _OPTIONS:
            raise ValueError(f"{shown(url)!r}: {key}= is not known; use {', '.join(_OPTIONS)}")
        if key == "tls":
            if value.lower() not in _YES_NO:
                raise ValueError(f"{shown(url)!r}: tls={value} must be true or false")
            options[key] = _YES_NO[value.lower()]
        elif not value and key != "prefix":
            raise ValueError(f"{shown(url)!r}: {key}= must not be empty")
        else:
            options["converter" if key == "data_converter" else key] = value
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(f"{host}:{port}", unquote(parts.path[1:]) or "default", **options)


def _find(name: str) -> DataConverter:
    """Return the data converter that `module:name` is."""
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            raise AttributeError("it must look like package.module:name")
        found: DataConverter = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"data_converter={name} cannot be had: {error}") from None
    return found
