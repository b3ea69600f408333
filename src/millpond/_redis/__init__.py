"""A small client of Redis and Valkey: it needs no redis-py, which takes 12 MB and more, and a third of a second.

    _address   Address: where a server is and how to get in, from a URL
    _client    Client: calls and scripts on one connection; Subscription: hints on another
    _server    what a server says of itself, and must be

Every worker and every companion is that much smaller (docs/decisions/0022, 0029). hiredis parses where it is installed.
"""

from millpond._redis._address import Address
from millpond._redis._client import Client, Connection, Script, ServerError, Subscription, connected
from millpond._redis._server import check_server, read_info

__all__ = [
    "Address",
    "Client",
    "Connection",
    "Script",
    "ServerError",
    "Subscription",
    "check_server",
    "connected",
    "read_info",
]
