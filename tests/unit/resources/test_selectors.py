"""Selectors: one spelling per meaning, and errors that say what to write instead."""

from __future__ import annotations

import enum

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.resources._rules.selectors import labels_of, matches, parse, write


class Model(str, enum.Enum):  # noqa: UP042  # whose str() is not its value
    A100 = "a100"


class Count(int, enum.Enum):
    FOUR = 4


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (None, "*"),
        ({}, "*"),
        ({"model": "a100"}, "model=a100"),
        ({"model": ["h100", "a100"]}, "model in (a100 h100)"),
        ({"model": {"a100"}}, "model=a100"),
        ({"model": ("a100", "a100")}, "model=a100"),
        ({"gpus": 4}, "gpus=4"),
        ({"gpus": [10, 9]}, "gpus in (10 9)"),
        ({"nvlink": True}, "nvlink"),
        ({"nvlink": False}, "!nvlink"),
        ({"nvlink": ""}, 'nvlink=""'),
        ({"zone": "b", "model": "a100", "nvlink": True}, "model=a100,nvlink,zone=b"),
        ([{"model": "h100"}, {"zone": "a"}], "model=h100 | zone=a"),
        ([{"zone": "a"}, {"model": "h100"}], "zone=a | model=h100"),
        ([{"zone": "a"}, {"zone": "a"}], "zone=a"),
        ([{"zone": "a"}, {}, {"zone": "b"}], "zone=a | *"),
        ({"model": Model.A100, "gpus": Count.FOUR}, "gpus=4,model=a100"),
        ({"in": "in"}, '"in"="in"'),
        ({"a b": "c,d"}, '"a b"="c,d"'),
        ({"*": "@x"}, '"*"="@x"'),
        ({"path": "/dev/sda1", "addr": "10.0.0.1:80"}, "addr=10.0.0.1:80,path=/dev/sda1"),
        ({"größe": "übel"}, "größe=übel"),
        ({"q": 'say "hi"\n\\'}, r'q="say \"hi\"\n\\"'),
        ("zone = b , model=a100", "model=a100,zone=b"),
        ("model in (h100, a100)", "model in (a100 h100)"),
        ("  *  ", "*"),
        ("model,model=a100", "model=a100"),
        ("model=a100,model,model=a100", "model=a100"),
        ("model in (a b),model in (b c)", "model=b"),
        ("!a | @gpu-0", "!a | @gpu-0"),
        ("@gpu-0,zone=a", "@gpu-0,zone=a"),
    ],
)
def test_a_meaning_has_one_spelling(selector, text):
    assert write(selector) == text
    assert write(text) == text


def test_a_name_is_written_with_an_at_sign():
    assert write(name="gpu-0") == "@gpu-0"
    assert write(name="gpu 0|*") == '@"gpu 0|*"'
    assert matches(parse('@"gpu 0|*"')[0], "gpu 0|*", {})
    assert not matches(parse("@gpu-0")[0], "gpu-1", {})


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("*", {}, True),
        ("a=1", {"a": "1"}, True),
        ("a=1", {"a": "2"}, False),
        ("a=1", {}, False),
        ("a in (1 2)", {"a": "2"}, True),
        ("a in (1 2)", {"a": "3"}, False),
        ("a", {"a": ""}, True),
        ("a", {"b": ""}, False),
        ("!a", {"b": ""}, True),
        ("!a", {"a": "1"}, False),
        ('a=""', {"a": ""}, True),
        ('a=""', {}, False),
        ("a=1,!b", {"a": "1"}, True),
        ("a=1,!b", {"a": "1", "b": ""}, False),
    ],
)
def test_every_term_must_hold(text, labels, expected):
    assert matches(parse(text)[0], "r", labels) is expected


@pytest.mark.parametrize(
    ("selector", "error", "guide"),
    [
        (7, TypeError, "a mapping of labels, or a list of such mappings, not 7"),
        (b"model=a", TypeError, "a mapping of labels"),
        ([], ValueError, "give None for any resource"),
        (["a=1"], TypeError, "a list of such mappings"),
        ({"a": 1.5}, TypeError, "'a' is compared with 1.5: give a string"),
        ({"a": None}, TypeError, "non-empty list"),
        ({"a": []}, TypeError, "non-empty list"),
        ({"a": b"x"}, TypeError, "'a' is compared with b'x'"),
        ({"a": {"x": 1}}, TypeError, "give a string"),
        ({"a": [True]}, TypeError, "wanted of label 'a'"),
        ({"": "x"}, TypeError, "non-empty string"),
        ({1: "x"}, TypeError, "non-empty string, not 1"),
        ("", ValueError, "wanted a word .*, found the end"),
        ("a=", ValueError, "wanted a word .*, found the end"),
        ("a=1 b=2", ValueError, "wanted ',' or '|' or the end, found 'b'"),
        ("a=1 |", ValueError, "found the end"),
        ("a in 1", ValueError, r"wanted '\(', found '1'"),
        ("a in (1", ValueError, "found the end"),
        ("a in ()", ValueError, r"found '\)'"),
        ("a=1;b=2", ValueError, "from ';b=2' on"),
        ('a="x', ValueError, "from '\"x' on"),
        (r'a="\q"', ValueError, "is no JSON string"),
        ('""=x', ValueError, "key must not be empty"),
        ("a=1,a=2", ValueError, "a=1 and a=2 matches nothing: separate alternatives by '|'"),
        ("a,!a", ValueError, "a and !a matches nothing"),
        ("a=1,!a", ValueError, "matches nothing"),
        ("@x,@y", ValueError, "@x and @y matches nothing"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_write(selector, error, guide):
    with pytest.raises(error, match=guide):
        write(selector)


def test_a_name_excludes_a_selector():
    with pytest.raises(TypeError, match="not both"):
        write({"a": 1}, name="x")
    for name in ("", 7, b"x"):
        with pytest.raises(TypeError, match="name= must be a non-empty string"):
            write(name=name)  # type: ignore[arg-type]


def test_labels_become_text():
    assert labels_of(None) == {}
    assert labels_of({"model": "a100", "gpus": 4, "nvlink": True}) == {"model": "a100", "gpus": "4", "nvlink": ""}
    assert labels_of({"model": Model.A100, "gpus": Count.FOUR}) == {"model": "a100", "gpus": "4"}


@pytest.mark.parametrize(
    ("labels", "error", "guide"),
    [
        ({"a": False}, ValueError, "leave it out instead"),
        ({"a": None}, TypeError, "a string, a whole number or True, not None"),
        ({"a": 1.0}, TypeError, "not 1.0"),
        ({"": "x"}, TypeError, "non-empty string"),
        ({2: "x"}, TypeError, "non-empty string, not 2"),
        (["a"], TypeError, "labels must be a mapping"),
        ([], TypeError, "labels must be a mapping"),
    ],
)
def test_labels_that_make_no_sense_are_refused(labels, error, guide):
    with pytest.raises(error, match=guide):
        labels_of(labels)


WORDS = st.text(min_size=1, max_size=4) | st.sampled_from(
    ["a", "b", "in", "*", "!a", "a=b", '"', "\\", "a|b", " ", "(", "@"]
)
VALUES = WORDS | st.integers(-2, 3) | st.just("")
TERMS = st.dictionaries(WORDS, VALUES | st.booleans() | st.lists(VALUES, min_size=1, max_size=3), max_size=3)
SELECTORS = st.none() | TERMS | st.lists(TERMS, min_size=1, max_size=3)
LABELS = st.dictionaries(WORDS, VALUES.map(str), max_size=3)


def naive(selector, labels):
    """Return which of the alternatives, as the user wrote them, is the first to match."""
    alternatives = [{}] if selector is None else [selector] if isinstance(selector, dict) else selector
    for index, terms in enumerate(alternatives):
        for key, value in terms.items():
            if value is True and key not in labels:
                break
            if value is False and key in labels:
                break
            if isinstance(value, bool):
                continue
            values = value if isinstance(value, list) else [value]
            if labels.get(key) not in [str(one) for one in values]:
                break
        else:
            return index
    return None


def first_match(text, labels):
    return next((index for index, one in enumerate(parse(text)) if matches(one, "r", labels)), None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SELECTORS, st.data())
def test_what_is_written_means_what_was_said(selector, data):
    text = write(selector)
    said = [] if selector is None else [selector] if isinstance(selector, dict) else selector
    near = {key: str(value[0]) if isinstance(value, list) else str(value) for one in said for key, value in one.items()}
    labels = data.draw(LABELS | st.just(near) | st.just(dict.fromkeys(near, "")))
    assert (first_match(text, labels) is None) == (naive(selector, labels) is None)
    assert write(text) == text, "canonical text is its own spelling"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TERMS, min_size=1, max_size=3), LABELS)
def test_the_order_of_preference_is_kept(selector, labels):
    by_text = first_match(write(selector), labels)
    by_hand = naive(selector, labels)
    if by_hand is None:
        assert by_text is None
    else:
        spelled = list(dict.fromkeys(write(one) for one in selector))
        assert by_text == spelled.index(write(selector[by_hand]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TERMS, st.randoms())
def test_the_order_of_writing_does_not_matter(terms, dice):
    shuffled = list(terms.items())
    dice.shuffle(shuffled)
    again = {key: dice.sample(value, len(value)) if isinstance(value, list) else value for key, value in shuffled}
    assert write(again) == write(terms)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text):
    try:
        spelled = write(text)
    except ValueError:
        return
    assert write(spelled) == spelled


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORDS)
def test_any_name_finds_its_resource(name):
    [alternative] = parse(write(name=name))
    assert matches(alternative, name, {})
    assert not matches(alternative, name + "x", {name: name})
