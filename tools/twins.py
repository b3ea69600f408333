"""Make the synchronous twins of asynchronous sources, or `--check` that those of the tree are what would be made.

usage: python tools/twins.py [--check]

The asynchronous file is written by hand, its twin never. Rules, by kind of token:

  code        `async def`, `async with`, `async for` and `await x` lose their first word, and `(await x).y` its
              parentheses; names change as `renamed` says; `Awaitable[X]` is X; `AsyncGenerator[Y, S]` is
              `Generator[Y, S, None]`
  docstrings  the same names; the same keywords in what is code there: `backticks`, fences, lines of `>>>`, and lines
              indented by four. Prose keeps its words: write it so that it is true of both
  comments    as docstrings
  f-strings   the expressions inside are code, the text around them stays
  strings     stay, unless the whole string is a name or a dotted path: "AsyncGrant" in `__all__` or in a cast

The work is done on tokens, and only what changes is cut out: every other character stays where it was. Then ruff
sorts the imports, drops those that are no longer needed, and formats. The same text comes out on every Python: 3.12
and later see the parts of an f-string as tokens, 3.11 does not, so that here they are joined and then taken apart.
Rejected: regular expressions on the whole text (they change strings), `ast.unparse` (it loses comments and blanks),
unasync (it knows names only: neither docstrings nor type parameters).
"""

from __future__ import annotations

import io
import keyword
import re
import shutil
import subprocess
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PAIRS = [
    ("src/millpond/resources/_async_pool.py", "src/millpond/resources/_pool.py"),
    ("src/millpond/resources/_async_grant.py", "src/millpond/resources/_grant.py"),
    ("src/millpond/resources/_async_observed.py", "src/millpond/resources/_observed.py"),
    ("src/millpond/resources/_async_admin.py", "src/millpond/resources/_admin.py"),
    *(
        (f"src/millpond/keyed/client/_async/{name}.py", f"src/millpond/keyed/client/_sync/{name}.py")
        for name in ("pool", "handle", "admin", "search")
    ),
]
"""Source and twin; a pair whose source is not there is passed over."""

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aiter": "iter",
    "anext": "next",
    "aclose": "close",
    "aclosing": "closing",
    "asynccontextmanager": "contextmanager",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "StopAsyncIteration": "StopIteration",
    "async_bridge": "bridge",
    "async_serve": "serve",
}
"""Names that no rule covers. `AsyncX` is X and `_async_x` is `_x`, whatever X is; a folder `_async` is `_sync`."""


def renamed(name: str) -> str:
    """Return what a name is called in the twin."""
    if name in NAMES:
        return NAMES[name]
    if re.match(r"Async[A-Z]", name):
        return name.removeprefix("Async")
    return re.sub(r"^_async_(?=[a-z])", "_", name)


# --- tokens -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """A token with its place in the text, counted in characters from the beginning."""

    kind: int
    text: str
    start: int
    end: int


_FSTRING_START = getattr(tokenize, "FSTRING_START", None)
_FSTRING_END = getattr(tokenize, "FSTRING_END", None)
_BLANKS = {tokenize.NL, tokenize.COMMENT}
_BEFORE_A_STATEMENT = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of a text; an f-string is one STRING, as on Python 3.11."""
    begins = [0]
    for line in source.split("\n"):
        begins.append(begins[-1] + len(line) + 1)
    tokens: list[Token] = []
    depth, opened = 0, 0
    for each in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = begins[each.start[0] - 1] + each.start[1], begins[each.end[0] - 1] + each.end[1]
        if each.type == _FSTRING_START:
            depth, opened = depth + 1, opened if depth else start
        elif each.type == _FSTRING_END:
            depth -= 1
            if not depth:
                tokens.append(Token(tokenize.STRING, source[opened:end], opened, end))
        elif not depth:
            tokens.append(Token(each.type, each.string, start, end))
    return tokens


def closing(tokens: list[Token], index: int) -> int:
    """Return the index of the bracket that closes the one at `index`."""
    depth = 0
    for at in range(index, len(tokens)):
        if tokens[at].kind == tokenize.OP:
            depth += (tokens[at].text in "([{") - (tokens[at].text in ")]}")
            if depth == 0:
                return at
    raise ValueError(f"a bracket is never closed: {tokens[index].text!r} at character {tokens[index].start}")


# --- code -------------------------------------------------------------------------------------------------------------


def translate(source: str) -> str:
    """Return the twin of a source, not yet tidied."""
    twin, done = [], 0
    for start, end, text in sorted(Translation(source).edits()):
        twin += [source[done:start], text]
        done = end
    return "".join(twin) + source[done:]


class Translation:
    """What has to change in one source."""

    def __init__(self, source: str) -> None:
        self.tokens = tokens_of(source)
        self._edits: list[tuple[int, int, str]] = []

    def edits(self) -> list[tuple[int, int, str]]:
        """Return the changes, as (start, end, new text)."""
        for index, token in enumerate(self.tokens):
            if token.kind == tokenize.NAME:
                self._name(index)
            elif token.kind == tokenize.COMMENT:
                self._put(token, prose(token.text))
            elif token.kind == tokenize.STRING:
                self._put(token, prose(token.text) if self._is_docstring(index) else string(token.text))
        return self._edits

    def _put(self, token: Token, text: str) -> None:
        if text != token.text:
            self._edits.append((token.start, token.end, text))

    def _name(self, index: int) -> None:
        token, after = self.tokens[index], self.tokens[index + 1]
        if token.text in ("async", "await"):
            self._edits.append((token.start, after.start, ""))
            if token.text == "await":
                self._bare(index)
        elif token.text in ("Awaitable", "AsyncGenerator") and after.text == "[":
            self._parameters(index)
        else:
            is_folder = token.text == "_async" and self._is_import(index)
            self._put(token, "_sync" if is_folder else renamed(token.text))

    def _is_import(self, index: int) -> bool:
        """Return whether a name is part of the path of an import: `from millpond.keyed.client._async.pool import`."""
        while index > 0 and (self.tokens[index].kind == tokenize.NAME or self.tokens[index].text == "."):
            if self.tokens[index].text in ("from", "import"):
                return True
            index -= 1
        return self.tokens[index].text in ("from", "import")

    def _parameters(self, index: int) -> None:
        """Change a generic whose parameters are others in the twin."""
        token, last = self.tokens[index], closing(self.tokens, index + 1)
        if token.text == "Awaitable":
            is_long = any(each.kind == tokenize.NL for each in self.tokens[index:last])  # then brackets join its lines
            self._edits.append((token.start, self.tokens[index + 1].end, "(" if is_long else ""))
            self._edits.append((self.tokens[last].start, self.tokens[last].end, ")" if is_long else ""))
            return
        commas, at, trails = 0, index + 2, False
        while at < last:
            each = self.tokens[at]
            if each.kind not in _BLANKS:
                trails = each.text == ","
                commas += trails
            at = closing(self.tokens, at) + 1 if each.text in ("(", "[", "{") else at + 1
        missing = ", ".join(["None"] * (3 - (commas + (not trails))))
        self._put(token, renamed(token.text))
        if missing:
            place = self.tokens[last].start
            self._edits.append((place, place, f" {missing}" if trails else f", {missing}"))

    def _bare(self, index: int) -> None:
        """Drop the parentheses of `(await x.y(z))`, which nothing needs in the twin."""
        before = self.tokens[index - 2] if index > 1 else None
        if self.tokens[index - 1].text != "(" or before is None:
            return
        is_name = before.kind == tokenize.NAME and not keyword.iskeyword(before.text)
        if is_name or before.kind == tokenize.STRING or before.text in (")", "]", "}"):
            return  # the parentheses of a call
        last, at = closing(self.tokens, index - 1), index + 1
        wants_name = True
        while at < last:
            token = self.tokens[at]
            if wants_name:
                if token.kind != tokenize.NAME or keyword.iskeyword(token.text):
                    return
                wants_name = False
            elif token.text in ("(", "["):
                at = closing(self.tokens, at)
            elif token.text == ".":
                wants_name = True
            else:
                return
            at += 1
        for bracket in (self.tokens[index - 1], self.tokens[last]):
            self._edits.append((bracket.start, bracket.end, ""))

    def _is_docstring(self, index: int) -> bool:
        """Say whether a string is a statement of its own. An f-string never documents anything."""
        before = next((each for each in reversed(self.tokens[:index]) if each.kind not in _BLANKS), None)
        after = self.tokens[index + 1] if index + 1 < len(self.tokens) else None
        stands_first = before is None or before.kind in _BEFORE_A_STATEMENT
        stands_alone = stands_first and (after is None or after.kind in (tokenize.NEWLINE, tokenize.COMMENT))
        return stands_alone and "f" not in self.tokens[index].text[:2].lower()


# --- strings ----------------------------------------------------------------------------------------------------------

_STRING = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")(.*)\2", re.DOTALL)
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def string(text: str) -> str:
    """Return a string literal for the twin: changed inside the fields of an f-string, or when it is all a name."""
    match = _STRING.fullmatch(text)
    assert match is not None, text
    prefix, quote, body = match.groups()
    if "f" in prefix.lower():
        body, _ = _fields(body, 0, is_raw="r" in prefix.lower(), in_format=False)
    elif _PATH.fullmatch(body):
        body = ".".join(map(renamed, body.split(".")))
    return f"{prefix}{quote}{body}{quote}"


def _fields(text: str, at: int, *, is_raw: bool, in_format: bool) -> tuple[str, int]:
    """Translate the fields of an f-string from `at` to its end, or to the brace that ends a format."""
    out = []
    while at < len(text) and not (in_format and text[at] == "}"):
        if text.startswith(("{{", "}}"), at) or (not is_raw and text.startswith("\\\\", at)):
            size = 2
        elif not is_raw and text.startswith("\\N{", at):
            size = text.index("}", at) + 1 - at
        elif text[at] == "{":
            end = _end_of_expression(text, at + 1)
            out.append("{" + translate(f"({text[at + 1 : end]})")[1:-1])
            at = end
            if text[at] == "!":
                out.append(text[at : at + 2])
                at += 2
            if text[at] == ":":
                form, at = _fields(text, at + 1, is_raw=is_raw, in_format=True)
                out.append(":" + form)
            size = 1
        else:
            size = 1
        out.append(text[at : at + size])
        at += size
    return "".join(out), at


def _end_of_expression(text: str, at: int) -> int:
    """Return where the expression of a field ends: at its `!`, `:` or `}`."""
    depth = 0
    while True:
        if quote := re.match(r"'''|\"\"\"|'|\"", text[at:]):
            at = text.index(quote[0], at + len(quote[0])) + len(quote[0])
            continue
        if depth == 0 and (text[at] in ":}" or (text[at] == "!" and text[at + 1] != "=")):
            return at
        depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 2 if text.startswith("!=", at) else 1


# --- docstrings and comments ------------------------------------------------------------------------------------------

_NAME = re.compile(r"\b(?:Async[A-Z]\w*|_async_[a-z]\w*|" + "|".join(NAMES) + r")\b")
_SPAN = re.compile(r"```.*?```|(`+)[^`]+\1", re.DOTALL)
_KEYWORD = re.compile(r"\basync +(?=(?:def|with|for)\b)|\bawait +(?=[\w(])")


def prose(text: str) -> str:
    """Return a docstring or a comment for the twin."""
    text = _SPAN.sub(lambda span: _KEYWORD.sub("", span[0]), text)
    first, *rest = text.split("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest if line.strip()]
    base = min(indents, default=0)
    lines = [first]
    for line in rest:
        is_code = line.startswith(" " * (base + 4)) or line.lstrip().startswith((">>> ", "... "))
        lines.append(_KEYWORD.sub("", line) if is_code else line)
    return _NAME.sub(lambda name: renamed(name[0]), "\n".join(lines))


# --- files ------------------------------------------------------------------------------------------------------------


def tidied(text: str, path: Path) -> str:
    """Return the text of `path` with its imports in order and its lines as ruff has them."""
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.exists() else shutil.which("ruff")
    if ruff is None:
        raise SystemExit("ruff is not installed: run `make setup`")
    # Said aloud, for ruff takes an import from a twin that is not written yet for one from a stranger.
    ours = ["--config", "pyproject.toml", "--config", 'lint.isort.known-first-party = ["millpond"]']
    for command in (["check", "--fix", "--exit-zero", "--select", "I,F401", *ours], ["format", *ours]):
        run = [ruff, *command, "--quiet", "--stdin-filename", str(path), "-"]
        done = subprocess.run(run, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"the twin {path} is not valid Python:\n{done.stderr}")
        text = done.stdout
    return text


def twin_of(source: Path, twin: Path) -> str:
    """Return what the twin of `source` must be."""
    head = f"# Generated from {source.name} by tools/twins.py: edit that file, then run `make format`.\n"
    return tidied(head + translate(source.read_text(encoding="utf-8")), twin)


def main(arguments: list[str], *, root: Path = ROOT, pairs: list[tuple[str, str]] = PAIRS) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python tools/twins.py [--check]", file=sys.stderr)
        return 2
    differ = 0
    for source, twin in pairs:
        if not (root / source).exists():
            continue
        text = twin_of(root / source, root / twin)
        if (root / twin).exists() and (root / twin).read_text(encoding="utf-8") == text:
            continue
        if arguments:
            print(f"{twin} is not the twin of {source}: run make format", file=sys.stderr)
            differ = 1
        else:
            (root / twin).write_text(text, encoding="utf-8")
            print(f"wrote {twin}")
    return differ


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
