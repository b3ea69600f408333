"""Arguments and results as bytes: MessagePack by msgspec, checked against the handler's own annotations.

The parameters of a handler (after the first, which is the job) become a Struct. So a call that does not fit is refused
where it is made, with Python's own words, and what arrives is checked and converted where it is run. Arguments travel
by name: a handler may gain parameters with defaults while older producers are at work.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import msgspec

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode

_POSITIONAL = ""
"""Where arguments stand that were given by position to a job whose handler the producer does not know."""
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class DoesNotFit(Exception):
    """Arguments that the handler here does not take; the text says why."""


class AnyShape:
    """The arguments of a job whose handler is not known here, or takes whatever comes."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments as bytes."""
        return _pack({**({_POSITIONAL: args} if args else {}), **kwargs})

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments."""
        found = decode(payload)
        return tuple(found.pop(_POSITIONAL, ())), found


class Shape:
    """The parameters of a handler, without the first."""

    def __init__(self, name: str, function: Callable[..., Any], parameters: list[Parameter]) -> None:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception:  # a name that only a type checker can see
            hints = {}
        fields: list[Any] = []
        for each in parameters:
            kind = hints.get(each.name, Any)
            try:
                msgspec.msgpack.Decoder(kind)
            except (TypeError, NotImplementedError, RecursionError) as error:
                raise TypeError(
                    f"job {name!r}: parameter {each.name!r} has a type that cannot travel, {kind!r} ({error}); use "
                    "plain types, dataclasses or msgspec Structs, or annotate it as Any"
                ) from None
            default = msgspec.field() if each.default is Parameter.empty else _default(each.default)
            fields.append((each.name, kind, default) if each.default is not Parameter.empty else (each.name, kind))
        self._name = name
        self._signature = inspect.Signature(parameters)
        by_position = [each for each in parameters if each.kind in _BY_POSITION]
        self._count = len(by_position)
        self._is_plain = self._count == len(parameters)
        self._struct = msgspec.defstruct(
            name.replace(".", "_"), fields, kw_only=not self._is_plain, omit_defaults=True, forbid_unknown_fields=True
        )
        self._decode = msgspec.msgpack.Decoder(self._struct).decode
        self._names = tuple(each.name for each in parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments as bytes; raise TypeError when the handler would not take them."""
        try:
            made = self._struct(*args, **kwargs) if self._is_plain else self._bound(args, kwargs)
        except TypeError as error:
            words = str(error).replace("Extra positional arguments provided", f"too many arguments, {len(args)}")
            raise TypeError(f"job {self._name!r} takes {self._signature}: {words[:1].lower()}{words[1:]}") from None
        return _pack(made)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._struct(**self._signature.bind(*args, **kwargs).arguments)

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, converted to what the handler's annotations say; raise `DoesNotFit`."""
        try:
            found = self._decode(payload)
        except msgspec.ValidationError as error:
            found = self._by_position(payload, error)
        values = tuple(getattr(found, name) for name in self._names)
        if self._is_plain:
            return values, {}
        count = self._count
        return values[:count], dict(zip(self._names[count:], values[count:], strict=True))

    def _by_position(self, payload: bytes, error: Exception) -> Any:
        """Fit arguments that came by position, from a producer who does not know the names."""
        found = decode(payload)
        if not isinstance(found, dict) or _POSITIONAL not in found:
            raise DoesNotFit(str(error)) from None
        args = found.pop(_POSITIONAL)
        try:
            return msgspec.convert(self._signature.bind(*args, **found).arguments, self._struct)
        except (TypeError, msgspec.ValidationError) as reason:
            raise DoesNotFit(str(reason)) from None


def shape_of(name: str, function: Callable[..., Any]) -> Shape | AnyShape:
    """Return the shape of a handler's arguments; raise TypeError when it cannot be a handler."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _BY_POSITION:
        raise TypeError(f"job {name!r}: a handler takes the job as its first parameter: def {name}(job, ...)")
    rest = parameters[1:]
    if any(each.kind in _REST for each in rest):
        return AnyShape()
    return Shape(name, function, rest)


def result_type(function: Callable[..., Any]) -> Any:
    """Return what a handler says it returns, as far as that can travel."""
    try:
        kind = typing.get_type_hints(function, include_extras=True).get("return", Any)
        msgspec.msgpack.Decoder(kind)
    except Exception:
        return Any
    return kind


def _default(value: Any) -> Any:
    """Return a default that a Struct takes: a mutable one is made anew for each."""
    return msgspec.field(default_factory=lambda: value) if isinstance(value, (list, dict, set, bytearray)) else value


def _pack(value: Any) -> bytes:
    try:
        return encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise TypeError(
            f"these arguments cannot travel: {error}; send plain types, dataclasses or msgspec Structs"
        ) from None
