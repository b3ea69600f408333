"""The page: all pools of a place in a browser, and the same as a JSON API. `pip install "millpond[web]"`.

How a request goes through the layers, from the top:

    _serve              the server of `millpond web`: uvicorn, bound to this machine unless there is a token
    _app                the routes, for `app.mount("/pools", millpond.web.app(url))` too
    _guard, _tokens     who may ask: host, origin, token; headers of every answer
    _live               what happens, as server-sent events
    _looks, _acts       the words of the commands: what each answers, what each does
    _moves              what happened to keys when workers came, went and died
    _pools              the pools of a place, open
    static/             the page itself: no build step, nothing from elsewhere

The page keeps no state of its own but what it remembers of workers that have just gone: what it shows comes from the
store, so several of them show the same. Everything blocking runs in threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = ["app"]

_find, __dir__ = lazy(__name__, {"app": "millpond.web._app"})

if TYPE_CHECKING:
    from millpond.web._app import app
else:  # a checker that saw this would take any name to be there
    __getattr__ = _find
