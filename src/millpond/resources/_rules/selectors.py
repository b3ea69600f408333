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

Terms of one mapping must all hold; they are sorted, and several terms about one label become one, so the way of
writing does not matter. Whatever is not plain letters, digits and `_ . : / + -` is written as a JSON string.
`parse(write(x))` is the identity on meanings, and `write` on canonical texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

LabelValue: TypeAlias = str | int | bool
Labels: TypeAlias = Mapping[str, LabelValue]
Terms: TypeAlias = Mapping[str, LabelValue | Sequence[str | int]]
Selector: TypeAlias = str | Terms | Sequence[Terms]

ANY: Final = "*"
_WORD = re.compile(r"[\w.:/+-]+")
_TOKEN = re.compile(r'\s*(?:(?P<word>[\w.:/+-]+)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>[=,|()!@*]))')

Term: TypeAlias = tuple[str, str, tuple[str, ...]]
Alternative: TypeAlias = tuple[Term, ...]
"""Terms `(operator, key, values)`: `=` one of the values, `+` present, `-` absent, `@` the resource's name."""


def labels_of(labels: Labels | None) -> dict[str, str]:
    """Return labels as text to text; a flag (`True`) is a label with an empty value."""
    return _labels({} if labels is None else labels)


def _labels(labels: object) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels must be a mapping such as {{'model': 'a100'}}, not {labels!r}")
    result: dict[str, str] = {}
    for key, value in labels.items():
        if value is False:
            raise ValueError(f"label {key!r} is False: leave it out instead, its absence can be asked for")
        if not isinstance(value, str | int):
            raise TypeError(f"label {key!r} must be a string, a whole number or True, not {value!r}")
        result[_key(key)] = "" if value is True else _text(value)
    return result


def write(selector: Selector | None = None, *, name: str | None = None) -> str:
    """Return the canonical text of what a user asked for."""
    return _write(selector, name)


def _write(selector: object, name: object) -> str:
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


def only_name(alternatives: Sequence[Alternative]) -> str | None:
    """Return the one resource that is asked for by its name, if it is."""
    first, *rest = alternatives
    return first[0][1] if not rest and len(first) == 1 and first[0][0] == "@" else None


def matches(alternative: Alternative, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a resource of that name with these labels satisfies every term."""
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


def _terms(selector: Mapping[object, object]) -> Alternative:
    terms: list[Term] = []
    for label, value in selector.items():
        key = _key(label)
        if isinstance(value, bool):
            terms.append(("+" if value else "-", key, ()))
        elif isinstance(value, str | int):
            terms.append(("=", key, (_text(value),)))
        elif isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray) and value:
            if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in value):
                raise TypeError(f"the values wanted of label {key!r} must be strings or whole numbers, not {value!r}")
            terms.append(("=", key, tuple(sorted({_text(one) for one in value}))))
        else:
            raise TypeError(
                f"label {key!r} is compared with {value!r}: give a string, a whole number, a non-empty list of them, "
                "True (present) or False (absent)"
            )
    return _joined(terms)


def _joined(terms: Iterable[Term]) -> Alternative:
    """Return terms that all hold, sorted, with one term per label."""
    found: dict[tuple[str, str], Term] = {}
    for operator, key, values in terms:
        about = ("name" if operator == "@" else "label", "" if operator == "@" else key)
        before = found.get(about)
        if before is None or (before[0] == "+" and operator == "="):
            found[about] = (operator, key, values)
        elif operator == before[0] == "=" and set(values) & set(before[2]):
            found[about] = ("=", key, tuple(sorted(set(values) & set(before[2]))))
        elif (operator, key, values) != before and (before[0], operator) != ("=", "+"):
            both = " and ".join(map(_spell_term, (before, (operator, key, values))))
            raise ValueError(f"a selector that wants {both} matches nothing: separate alternatives by '|'")
    return tuple(sorted(found.values(), key=lambda term: (term[1], term[0], term[2])))


def _key(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(f"a label's key must be a non-empty string, not {key!r}")
    return _text(key)


def _text(value: str | int) -> str:
    """Return the plain text of a value, also of one that belongs to an enumeration."""
    return str.__str__(value) if isinstance(value, str) else int.__repr__(value)


def _spell(alternatives: Sequence[Alternative]) -> str:
    texts = []
    for one in alternatives:
        texts.append(",".join(map(_spell_term, one)) or ANY)
        if not one:
            break  # any resource will do: what comes after is never looked at
    return " | ".join(dict.fromkeys(texts))


def _spell_term(term: Term) -> str:
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


def _unquote(text: str, quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError as error:
        raise ValueError(f"cannot read selector {text!r}: {quoted} is no JSON string ({error})") from None


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
            self.tokens.append((kind, _unquote(text, found[kind]) if kind == "quoted" else found[kind]))
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
        return _joined(terms)

    def _term(self) -> Term:
        if self._take("@"):
            return "@", self._word(), ()
        if self._take("!"):
            return "-", self._word(), ()
        key = self._word()
        if not key:
            raise ValueError(f"cannot read selector {self.text!r}: a label's key must not be empty")
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
            raise self._error(
                "a word (put it in double quotes if it has other characters than letters, digits, _.:/+-)"
            )
        self.next += 1
        return word

    def _error(self, wanted: str) -> ValueError:
        kind, word = self.tokens[self.next]
        got = "the end" if kind == "end" else repr(word)
        return ValueError(f"cannot read selector {self.text!r}: wanted {wanted}, found {got}")
