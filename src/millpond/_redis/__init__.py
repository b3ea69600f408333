"""A small client of Redis and Valkey for programs that must stay small: it needs no redis-py.

    _address   Address: where a server is and how to get in, from a URL
    _client    Client: calls and scripts on one connection; Subscription: hints on another

redis-py is the better client for everything else. A companion process must start quickly and take little memory, and
`import redis` takes 17 MB and a third of a second (docs/decisions/0022). The parser is hiredis where it is installed.
"""

from millpond._redis._address import Address
from millpond._redis._client import Client, Subscription

__all__ = ["Address", "Client", "Subscription"]
