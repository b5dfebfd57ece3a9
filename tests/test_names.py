"""The house speaks plainly: functions are named by imperative verbs, never by participles, and no
two classes alike.

A property is a value and may be named as one: `spec.frozen`, `rows.skipped`. Variables and fields
are free. A docstring says what a thing is, with the noun or verb in front, and no text holds a word
of `BANNED`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_IRREGULAR = """
    beaten begun bent bitten blown born borne bought bred broken brought built caught chosen clung dealt done drawn
    driven dug eaten fallen felt forbidden foreseen forgiven forgone forgotten fought flown frozen given gone got
    gotten grown heard held hung kept known laid lain led left lent lit lost made meant met mistaken outgrown overcome
    overridden overrun overwritten paid proven rebuilt redone relaid remade resent resold retold rewritten ridden risen
    rung said sawn seen sent sewn shaken shone shot shown shrunk slept slid sold sought spent spilt spoken sprung spun
    stolen stood strewn stricken strung stuck sung sunk swept swollen sworn swum swung taken taught thought thrown told
    torn trodden undergone understood undone unkept unmade unsent unwound upheld withdrawn withheld woken won worn
    woven written
"""
IRREGULAR = frozenset(_IRREGULAR.split())
"""Participles that do not end in -ed.

Left out is what is a noun or an imperative as well: `bound`, `cut`, `hidden` (states), `put`,
`read`, `reset`, `run`, `set`, `split`, `spread`.
"""

_NOUNS_AND_VERBS = (
    "bed bleed breed embed exceed feed heed hundred indeed need proceed red seed "
    "shed speed succeed weed"
)
NO_PARTICIPLES = frozenset(_NOUNS_AND_VERBS.split())
"""Verbs and nouns that end in -ed."""

FIELD_NAMES = {
    "masked_mean": "TRL, verl and NeMo RL call it so",
    "masked_whiten": "TRL and verl call it so",
    "distributed_vocab_topk": "NeMo RL calls it so",
}
"""Functions that begin with a participle because everyone knows them by it → who does."""

_RIDDLES = (
    "as at by for from how if in of on that to what when where whether which who whoever "
    "whose why with"
)
RIDDLES = frozenset(_RIDDLES.split())
"""First words of a docstring after which a reader still does not know what it is about."""

BANNED = re.compile(
    r"\b(goes on|nobody|of one's own|somebody|to be told|what there is|who trains|whoever)\b",
    re.IGNORECASE,
)
"""Words that name no actor, or `resume` by another name."""

PROMPTS = ("lockstep/judge/templates.py", "lockstep/algorithms/self_rewarding/new_prompts.py")
"""Texts that models read: another word there is another judge."""


def files() -> dict[str, str]:
    """Text by path, of the package and of the one beside it."""
    paths = sorted(
        path
        for folder in ("lockstep", "lockstep_logprobs", "lockstep_doctor")
        for path in (ROOT / folder).rglob("*.py")
    )
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def begins_with_participle(name: str) -> bool:
    if name.startswith("__"):
        return False
    first = name.lstrip("_").partition("_")[0]
    return first in IRREGULAR or (
        first.endswith("ed") and len(first) > 3 and first not in NO_PARTICIPLES
    )


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        ast.unparse(one).split(".")[-1] in ("property", "cached_property")
        for one in node.decorator_list
    )


def participles(text: str) -> Iterator[str]:
    """Functions, methods and nested functions of a file that begin with one, `line: name`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_property(node):
            continue
        if begins_with_participle(node.name) and node.name not in FIELD_NAMES:
            yield f"{node.lineno}: {node.name}"


def classes(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Where the classes of a name are, at any depth."""
    found: dict[str, list[str]] = {}
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return found


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of the docstrings of a file: strings that stand alone, below a definition or
    an assignment.
    """
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield node.lineno, words


def riddles(text: str) -> Iterator[str]:
    """Docstrings of a file that begin with a word of `RIDDLES`, `line: beginning`."""
    for line, words in docstrings(text):
        first = re.match(r"\w+", words.lstrip())
        if first is not None and first[0].lower() in RIDDLES:
            yield f"{line}: {words.strip()[:60]}"


def banned(text: str) -> Iterator[str]:
    """Docstrings, comments and strings of a file with a word of `BANNED`, `line: word`."""
    kinds = (tokenize.COMMENT, tokenize.STRING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            for found in BANNED.finditer(re.sub(r"\s", " ", token.string)):
                yield f"{token.start[0] + token.string[: found.start()].count(chr(10))}: {found[0]}"


def test_docstrings_do_not_begin_with_question_word_or_preposition() -> None:
    found = [f"{path}:{one}" for path, text in files().items() for one in riddles(text)]
    assert not found, "begin these with a noun, or with a verb such as Returns:\n" + "\n".join(
        found
    )


def test_no_text_holds_a_banned_word() -> None:
    found = [
        f"{path}:{one}"
        for path, text in files().items()
        if path not in PROMPTS
        for one in banned(text)
    ]
    assert not found, "name who acts, and say resume for a run that is continued:\n" + "\n".join(
        found
    )


def test_no_function_is_named_by_a_participle() -> None:
    found = [f"{path}:{one}" for path, text in files().items() for one in participles(text)]
    assert not found, (
        "name these by an imperative verb, such as draw, gather or open:\n" + "\n".join(found)
    )


def test_class_names_are_unique() -> None:
    assert not {name: places for name, places in classes(files()).items() if len(places) > 1}


def test_every_exempt_participle_name_is_still_in_use() -> None:
    nodes = [node for text in files().values() for node in ast.walk(ast.parse(text))]
    assert {node.name for node in nodes if isinstance(node, ast.FunctionDef)} >= FIELD_NAMES.keys()
    assert all(map(begins_with_participle, FIELD_NAMES))
    assert all(FIELD_NAMES.values())


@pytest.mark.parametrize(
    "text",
    [
        "def drawn(): 1",
        "class A:\n  async def _gathered_rows(self): 1",
        "def f():\n  def told(): 1",
        "@contextmanager\ndef opened(): 1",
        "class A:\n  @abstractmethod\n  def saved(self): ...",
        "def masked_sum(): 1",
    ],
)
def test_participle_rule_finds_function_named_by_participle(text: str) -> None:
    assert len(list(participles(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""What a file holds."""',
        'def f():\n  """Whether it holds."""',
        'class A:\n  """ Of a row, its length."""',
        'class A:\n  a: int = 1\n  """Where it lies."""',
        'async def f():\n  """\n  Who, and when."""',
        'LIMIT = 1\n"""How many."""',
    ],
)
def test_docstring_rule_finds_question_word_or_preposition_at_start(text: str) -> None:
    assert len(list(riddles(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "# whoever reads it",
        'x = "the run\\n goes on"',
        'x = f"{1} for Somebody"',
        '"""It is what\nthere is."""',
    ],
)
def test_banned_word_rule_finds_word_with_its_line(text: str) -> None:
    assert [one.partition(":")[0] for one in banned(text)] == ["1"]
