"""Which resources a request will take, as a small language with one spelling per meaning.

Users write mappings; the core keeps text, so that equal wishes are equal strings on every engine:

| a user writes                       | means                          | canonical text              |
|-------------------------------------|--------------------------------|-----------------------------|
| `None` or `{}`                      | any resource                   | `*`                         |
| `{"model": "a100"}`                 | the label has this value       | `model=a100`                |
| `{"model": ["a100", "h100"]}`       | … one of these values          | `model in (a100 h100)`      |
| `{"nvlink": True}`                  | … is there                     | `nvlink`                    |
| `{"nvlink": False}`                 | … is not there                 | `!nvlink`                   |
| `[{"model": "h100"}, {"zone": "a"}]`| either, the first preferred    | `model=h100 | zone=a`       |
| `name="gpu-0"`                      | this one resource              | `@gpu-0`                    |

Terms of one mapping must all hold; they are sorted, so the order of writing does not matter. Whatever is not plain
letters, digits and `_ . : / + -` is written as a JSON string. `parse(write(x))` is the identity on meanings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

LabelValue: TypeAlias = str | int | bool
Labels: TypeAlias = Mapping[str, LabelValue]
Terms: TypeAlias = Mapping[str, LabelValue | Sequence[str | int]]
Selector: TypeAlias = str | Terms | Sequence[Terms]

ANY: Final = "*"
_WORD = re.compile(r"[\w.:/+-]+")
_TOKEN = re.compile(r'\s*(?:(?P<word>[\w.:/+-]+)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>[=,|()!@*]))')

Alternative: TypeAlias = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Terms `(operator, key, values)`: `=` one of the values, `+` present, `-` absent, `@` the resource's name."""


def labels_of(labels: Labels | None) -> dict[str, str]:
    """Return labels as text to text; a flag (`True`) is a label with an empty value."""
    result: dict[str, str] = {}
    for key, value in (labels or {}).items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"a label's key must be a non-empty string, not {key!r}")
        if value is False:
            raise ValueError(f"label {key!r} is False: leave it out instead, its absence can be asked for")
        if not isinstance(value, str | int):
            raise TypeError(f"label {key!r} must be a string, a whole number or True, not {value!r}")
        result[key] = "" if value is True else str(value)
    return result


def write(selector: Selector | None = None, *, name: str | None = None) -> str:
    """Return the canonical text of what a user asked for."""
    if name is not None:
        if selector is not None:
            raise TypeError("give a selector or name=, not both: a name says it all")
        if not isinstance(name, str) or not name:
            raise TypeError(f"name= must be a non-empty string, not {name!r}")
        return "@" + _quote(name)
    if selector is None:
        return ANY
    if isinstance(selector, str):
        return _spell(parse(selector))
    if isinstance(selector, Mapping):
        return _spell([_terms(selector)])
    if not isinstance(selector, Sequence) or not all(isinstance(one, Mapping) for one in selector):
        raise TypeError(f"a selector is a mapping of labels, or a list of such mappings, not {selector!r}")
    if not selector:
        raise ValueError("a list of alternatives must not be empty; give None for any resource")
    return _spell([_terms(one) for one in selector])


def parse(text: str) -> list[Alternative]:
    """Read a canonical or hand-written text into its alternatives, in order of preference."""
    return _Parser(text).alternatives()


def matches(alternative: Alternative, name: str, labels: Mapping[str, str]) -> bool:
    """Tell whether a resource of that name with these labels satisfies every term."""
    for operator, key, values in alternative:
        if operator == "=":
            if labels.get(key) not in values:
                return False
        elif operator == "+":
            if key not in labels:
                return False
        elif operator == "-":
            if key in labels:
                return False
        elif key != name:
            return False
    return True


def _terms(selector: Terms) -> Alternative:
    terms = []
    for key, value in selector.items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"a label's key must be a non-empty string, not {key!r}")
        if isinstance(value, bool):
            terms.append(("+" if value else "-", key, ()))
        elif isinstance(value, str | int):
            terms.append(("=", key, (str(value),)))
        elif isinstance(value, Sequence | set | frozenset) and value:
            if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in value):
                raise TypeError(f"the values wanted of label {key!r} must be strings or whole numbers, not {value!r}")
            terms.append(("=", key, tuple(sorted({str(one) for one in value}))))
        else:
            raise TypeError(
                f"label {key!r} is compared with {value!r}: give a string, a whole number, a non-empty list of them, "
                "True (present) or False (absent)"
            )
    return tuple(sorted(terms, key=lambda term: (term[1], term[0], term[2])))


def _spell(alternatives: Sequence[Alternative]) -> str:
    return " | ".join(dict.fromkeys(",".join(map(_spell_term, one)) or ANY for one in alternatives))


def _spell_term(term: tuple[str, str, tuple[str, ...]]) -> str:
    operator, key, values = term
    if operator == "@":
        return "@" + _quote(key)
    if operator == "+":
        return _quote(key)
    if operator == "-":
        return "!" + _quote(key)
    if len(values) == 1:
        return f"{_quote(key)}={_quote(values[0])}"
    return f"{_quote(key)} in ({' '.join(map(_quote, values))})"


def _quote(word: str) -> str:
    return word if _WORD.fullmatch(word) and word != "in" else json.dumps(word, ensure_ascii=False)


class _Parser:
    """A reader of one text, by descent: alternatives of terms of words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"cannot read selector {text!r} from {text[at:]!r} on")
            kind = found.lastgroup or ""
            word = found[kind]
            self.tokens.append((kind, json.loads(word) if kind == "quoted" else word))
            at = found.end()
        self.tokens.append(("end", ""))
        self.next = 0

    def alternatives(self) -> list[Alternative]:
        found = [self._alternative()]
        while self._take("|"):
            found.append(self._alternative())
        if self.tokens[self.next][0] != "end":
            raise self._error("',' or '|' or the end")
        return found

    def _alternative(self) -> Alternative:
        if self._take("*"):
            return ()
        terms = [self._term()]
        while self._take(","):
            terms.append(self._term())
        return tuple(sorted(set(terms), key=lambda term: (term[1], term[0], term[2])))

    def _term(self) -> tuple[str, str, tuple[str, ...]]:
        if self._take("@"):
            return "@", self._word(), ()
        if self._take("!"):
            return "-", self._word(), ()
        key = self._word()
        if self._take("="):
            return "=", key, (self._word(),)
        if self.tokens[self.next] != ("word", "in"):
            return "+", key, ()
        self.next += 1
        if not self._take("("):
            raise self._error("'('")
        values = {self._word()}
        while not self._take(")"):
            self._take(",")
            values.add(self._word())
        return "=", key, tuple(sorted(values))

    def _take(self, mark: str) -> bool:
        if self.tokens[self.next] == ("mark", mark):
            self.next += 1
            return True
        return False

    def _word(self) -> str:
        kind, word = self.tokens[self.next]
        if kind not in ("word", "quoted"):
            raise self._error("a word")
        self.next += 1
        return word

    def _error(self, wanted: str) -> ValueError:
        got = self.tokens[self.next][1] or "the end"
        return ValueError(f"cannot read selector {self.text!r}: wanted {wanted}, found {got!r}")
