"""The files that this process has open for keyed pools: one `SharedFile` each, whoever asks."""

from __future__ import annotations

from millpond._sqlite import Registry
from millpond.keyed.stores.sqlite._file import SharedFile

files = Registry(lambda url, place: SharedFile(place))
