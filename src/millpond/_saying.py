"""What an exception says of itself, whatever its class does when it is asked: a job may raise anything."""

from __future__ import annotations

from collections.abc import Callable


def said(error: BaseException, how: Callable[[BaseException], str] = str) -> str:
    """Return the text of an exception, or why there is none. It is a plain `str`, not one of a class of its own."""
    try:
        return str.__str__(how(error))
    except BaseException as trouble:  # SystemExit, too, and what is no text
        try:
            return f"<unprintable: {kind_of(trouble)}: {str.__str__(str(trouble))}>"
        except BaseException:
            return f"<unprintable: {kind_of(trouble)}>"


def shown(error: BaseException) -> str:
    """Return what `repr` shows of an exception."""
    return said(error, repr)


def kind_of(error: BaseException) -> str:
    """Return the name of the class of an exception, with that of its module unless it is built in."""
    kind = type(error)
    name = type.__dict__["__qualname__"].__get__(kind)
    module = type.__dict__["__module__"].__get__(kind)
    return f"{module}.{name}" if type(module) is str and module != "builtins" else str(name)
