"""Reads the arguments of a training command from a shell script, without running anything."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from lockstep.errors import InputError
from lockstep.foreign.interpolation import Filler, parse_value
from lockstep.foreign.words import Json

_ASSIGNMENT = re.compile(r"(?:(?:export|readonly|local|declare(?:\s+-\w+)?)\s+)?([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"^\s*(?:declare\s+-a\s+)?([A-Za-z_]\w*\+?)=\((.*)$")
_BEFORE_COMMENT = re.compile(r"""(?:[^'"#]|"[^"]*"|'[^']*'|(?<=\S)#)*""")
_HEREDOC = re.compile(r"^\s*read\b.*\s([A-Za-z_]\w*)\s*<<-?\s*['\"]?(\w+)['\"]?\s*$")
_BODY = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)")
_QUOTES = ("'", '"', "$'")
_PIECE = re.compile(r"""\\.|\$'|[^\\'"$#]+|.""", re.DOTALL)
_ANSI = re.compile(r"""\\.|"(?:[^"\\]|\\.)*"|\$'((?:[^'\\]|\\.)*)'|'[^']*'""", re.DOTALL)
_ESCAPE = re.compile(
    rb"""\\(?:([abeEfnrtv\\'"?])|([0-7]{1,3})|(?:x([\da-fA-F]{1,2})|u([\da-fA-F]{1,4})|U0{0,3}([\da-fA-F]{1,5})))"""
)
_ESCAPED = dict(zip(b"abeEfnrtv", b"\a\b\x1b\x1b\f\n\r\t\v", strict=True))
_ONE_WORD = re.compile(r"""(?<!\S)(--[\w.-]++)\s+("\$(?:\w+|\{\w+\})")(?=\s*$|\s+(?:--|\d?[>|;&]))""")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*))?\}|\{(\w+)\[[@*]\]\})")
_ARITHMETIC = re.compile(r"\$\(\(([^$]+?)\)\)(?!\))")
_PROGRAM = re.compile(r"(.*\.py|(openrlhf\.cli|verl|recipe|trl)(\.\w+)+)")
_TRL = ("sft", "dpo", "grpo", "rloo", "reward", "kto")
_OVERRIDE = re.compile(r"[~+]*([\w.@/-]+)=(.*)", re.DOTALL)
_PROCESSES = ("--num_processes", "--nproc_per_node", "--nproc-per-node")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_DEEPEST = 20
_OPEN, _CLOSE = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
_KEYWORDS = (*_OPEN, *_CLOSE, "then", "else", "elif", "do")
_LABEL = re.compile(r"[^()$=]+\)")


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains: its program, its processes, its arguments, and what it takes that is not known."""

    program: str
    processes: int | None
    arguments: tuple[str, ...]
    unread: tuple[str, ...] = ()

    def read(self) -> dict[str, Json]:
        """Its arguments by name: Hydra's `key=value`, and flags with the values behind them."""
        found: dict[str, Json] = {}
        flag: str | None = None
        for word in self.arguments:
            override = _OVERRIDE.fullmatch(word)
            if word.startswith("--"):
                flag, equals, value = word[2:].partition("=")
                if flag.startswith("no_"):  # what is on without it
                    found[flag.removeprefix("no_")] = False
                    flag = None
                    continue
                flag = f"--{flag}" if flag.startswith("config-") else flag
                found[flag] = _read_word(value) if equals else True
                flag = None if equals else flag
            elif flag is not None:
                found[flag] = _append(found[flag], _read_word(word))
            elif override is not None:
                found[override[1]] = parse_value(override[2])
        return found


def find_command(script: str) -> TrainingCommand:
    """Finds the command with the most arguments of those that start a known program.

    Raises:
        InputError: There is none.
    """
    reader = _Script()
    commands = [command for line in _join_lines(script) for command in reader.read(line)]
    if not commands:
        raise InputError(
            "no command of verl, TRL or OpenRLHF is in it, such as python3 -m verl.trainer.main_ppo key=value"
        )
    command = max(commands, key=lambda command: len(command.arguments))
    return replace(command, unread=(*command.unread, *reader.added))


def _read_word(word: str) -> Json:
    """The value of a word; one such as `Q: {}` is a text, though YAML reads a mapping."""
    value = parse_value(word)
    is_text = isinstance(value, str) or (isinstance(value, dict) and not word.lstrip().startswith("{"))
    return word if is_text else value


def _append(value: Json, more: Json) -> Json:
    """The values of a flag: none is true, one is itself, several are a list."""
    if value is True:
        return more
    return [*value, more] if isinstance(value, list) else [value, more]


def _join_lines(script: str) -> Iterator[str]:
    """Lines, each with those that a backslash, a quote, an array or a here-document adds to it, and no comments."""
    lines, body = iter(script.replace("\\\r\n", "\\\n").splitlines()), ""
    while (line := next(lines, None)) is not None:
        heredoc, array = _HEREDOC.match(line), _ARRAY.match(line)
        if heredoc is not None:
            yield f"{heredoc[1]}={shlex.quote(_collect(lines, heredoc[2]))}"
            yield f"${heredoc[1]}"  # what its script gives to a launcher
            continue
        if array is not None:
            yield f"{array[1]}={shlex.quote(' ' + _collect_array(array[2], lines))}"
            continue
        line = _continue(line, lines)
        begins = _BODY.search(line)
        body = body if body and line.strip() != body else begins[1] if begins is not None else ""
        if not body:
            line, lines = _close_quote(line, lines)
        yield line


def _continue(line: str, lines: Iterator[str]) -> str:
    """A line with those that a backslash adds to it."""
    parts: list[str] = []
    while _is_continued(line):
        parts.append(line.rstrip()[:-1])
        line = _drop_comment(next(lines, ""))
    return " ".join([*parts, line])


def _is_continued(line: str) -> bool:
    """True for a line, other than a comment, that an odd number of backslashes ends."""
    text = line.rstrip()
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1 and not line.lstrip().startswith("#")


def _close_quote(line: str, lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """A line with those up to the end of its last quote, and the lines behind; alone where that does not end."""
    added: list[str] = []
    quote = _follow_quotes(line, "")
    while quote and (following := next(lines, None)) is not None:
        added.append(_continue(following, lines))
        quote = _follow_quotes(added[-1], quote)
    return (line, chain(added, lines)) if quote else ("\n".join([line, *added]), lines)


def _follow_quotes(line: str, quote: str) -> str:
    """The quote that is open at the end of a line, by the one at its beginning; empty: none."""
    before = " "
    for piece in _PIECE.findall(line):
        if not quote:
            if piece == "#" and before.isspace():
                break
            quote = piece if piece in _QUOTES else ""
        elif piece.endswith(quote[-1]) and (quote == "'" or not piece.startswith("\\")):
            quote = ""
        before = piece[-1]
    return quote


def _quote_plainly(text: str) -> str:
    """The text with what stands in `$'…'`, whose escapes bash reads, in quotes that shlex knows."""
    return _ANSI.sub(lambda match: match[0] if match[1] is None else shlex.quote(_unescape(match[1])), text)


def _unescape(text: str) -> str:
    def read(match: re.Match[bytes]) -> bytes:
        letter, octal, byte, *points = match.groups()
        if letter is not None:
            return bytes([_ESCAPED.get(letter[0], letter[0])])
        if octal is not None or byte is not None:
            return bytes([int(octal, 8) & 255 if octal is not None else int(byte, 16)])
        return chr(int(points[0] or points[1], 16)).encode(errors="replace")

    return _ESCAPE.sub(read, text.encode(errors="replace")).decode(errors="replace")


def _collect(lines: Iterator[str], end: str) -> str:
    """The text up to a line with nothing but `end`."""
    found: list[str] = []
    for line in lines:
        if line.strip() == end:
            break
        found.append(_drop_comment(line).rstrip().removesuffix("\\"))
    return "\n".join(found)


def _collect_array(first: str, lines: Iterator[str]) -> str:
    """The text of an array from what follows its parenthesis up to the one that closes it."""
    found: list[str] = []
    for line in chain([first], lines):
        found.append(_drop_comment(line).rstrip().removesuffix("\\"))
        if found[-1].endswith(")") and (found[-1].strip() == ")" or _is_closed("".join(found))):
            found[-1] = found[-1][:-1]
            break
    return "\n".join(found)


def _is_closed(text: str) -> bool:
    return text.count(")") > text.count("(")


def _split(line: str) -> Iterator[list[str]]:
    """The words of each statement of a line; none where its quotes do not end."""
    plain = _ONE_WORD.sub(r"\1=\2", _quote_plainly(line))  # a variable in quotes is not split, nor is what has a name
    counts = plain.replace("$#", "$0").replace("${#", "${0")  # no comments
    reader = shlex.shlex(
        _ARITHMETIC.sub(lambda match: match[0].replace(" ", ""), counts), posix=True, punctuation_chars=";"
    )
    reader.whitespace_split = True
    statement: list[str] = []
    try:
        for word in reader:
            if word.strip(";"):
                statement.append(word)
            else:
                yield statement
                statement = []
    except ValueError:
        return
    yield statement


def _find_inner(words: list[str]) -> Iterator[str]:
    """The texts that a statement gives to a shell: `bash -c "…"`."""
    in_options = False
    for before, word in pairwise(words):
        if before.rpartition("/")[2] in ("bash", "sh"):
            in_options = True
        elif not before.startswith("-") and before != "pipefail":
            in_options = False
        if in_options and re.fullmatch(r"-\w*c", before):
            yield word


def _drop_comment(line: str) -> str:
    before = _BEFORE_COMMENT.match(line)
    return before[0] if before is not None and line[before.end() :].startswith("#") else line


@dataclass
class _Script:
    """Reads a script line by line, and keeps its variables.

    Attributes:
        variables: Their values; one that has several, by a condition, stands for itself: `$name`.
        added: What conditions add to variables.
        depth: Blocks such as `if` that are open.
        filler: Bounds what they fill in.
    """

    variables: dict[str, str] = field(default_factory=dict)
    added: dict[str, None] = field(default_factory=dict)
    depth: int = 0
    filler: Filler = field(default_factory=Filler)

    def read(self, line: str) -> Iterator[TrainingCommand]:
        """The commands of a line that start a known program, also in a text that it gives to a shell."""
        for statement in _split(line):
            for inner in chain.from_iterable(map(_join_lines, _find_inner(statement))):
                yield from self.read(inner)
            command = self._read_statement(self._enter(statement))
            if command is not None:
                yield command

    def _enter(self, words: list[str]) -> list[str]:
        """Follows blocks; returns what is left of a statement behind their words."""
        while words and words[0] in _KEYWORDS:
            self.depth = max(0, self.depth + (words[0] in _OPEN) - (words[0] in _CLOSE))
            if words[0] == "for":
                return []
            words = words[words.index("in") if words[0] == "case" and "in" in words else 0 :][1:]
        if self.depth:
            while words[1:2] == ["|"]:
                words = words[2:]
            words = words[1:] if words and _LABEL.fullmatch(words[0]) else words
        return words

    def _read_statement(self, words: list[str]) -> TrainingCommand | None:
        while words and _ASSIGNMENT.fullmatch(words[0]) and "." not in words[0].partition("=")[0]:
            self._assign(words.pop(0), self.depth > 0)
        if words and words[0] in ("export", "readonly", "local", "declare"):
            for word in words[1:]:
                self._assign(word, self.depth > 0)
            return None
        for before, word in pairwise(words):
            if before in ("&&", "||"):
                self._assign(word, True)
        return _make_command([part for word in words for part in self._expand(word)])

    def _assign(self, word: str, on_condition: bool) -> None:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            return
        name, value = match[1], self._fill(match[2])
        earlier = self.variables.get(name)
        if word.partition("=")[0].endswith("+"):
            if on_condition:
                self.added[f"what a condition adds to ${name}"] = None
                return
            value = (earlier or "") + value
        elif on_condition and earlier not in (None, value):
            value = f"${name}"
        self.variables[name] = value

    def _expand(self, word: str) -> list[str]:
        """A word with its variables filled in; one that is a single variable becomes the words that it holds."""
        filled = self._fill(word)
        if not _VARIABLE.fullmatch(word) or " " not in filled:
            return [filled]
        try:
            return shlex.split(_quote_plainly(filled), comments=True)
        except ValueError:
            return [filled]

    def _fill(self, text: str) -> str:
        for _ in range(_DEEPEST):
            filled = self.filler.substitute(_VARIABLE, lambda match: _lookup(match, self.variables), text)
            filled = self.filler.substitute(_ARITHMETIC, lambda match: _calculate(match, self.variables), filled)
            if filled == text:
                break
            text = filled
        return text


def _lookup(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """A variable's value; its default where the script does not set it, else the variable as it stands."""
    name = match[1] or match[2] or match[4]
    return variables.get(name, f"${name}" if match[3] is None else match[3])


def _calculate(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """The value of whole-number arithmetic; as it stands where it is more than that."""
    named = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), match[1])
    try:
        return str(_evaluate(ast.parse(named.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return match[0]


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case _:
            raise ValueError("more than whole numbers and + - * / %")


def _make_command(words: list[str]) -> TrainingCommand | None:
    """The command in these words; what stands before its program belongs to a launcher."""
    named = [i for i, word in enumerate(words) if _PROGRAM.fullmatch(word)]
    trl = [i for i in range(len(words) - 1) if words[i] == "trl" and words[i + 1] in _TRL]
    if trl:
        program, at = words[trl[0] + 1], trl[0] + 1
    elif named:
        program, at = words[named[0]], named[0]
    else:
        return None
    arguments = tuple(word for word in words[at + 1 :] if word not in ("$@", "$*", "&&", ";", "|", "&"))
    arguments = _until_end(arguments)
    unread = tuple(
        word for before, word in pairwise(("", *arguments)) if _VARIABLE.fullmatch(word) and not before.startswith("--")
    )
    return TrainingCommand(program, _count_processes(words[:at]), arguments, unread) if arguments else None


def _count_processes(launcher: list[str]) -> int | None:
    """The processes that a launcher is told to start; None where it is not told."""
    said = re.search(rf"({'|'.join(_PROCESSES)})[= ](\d+)(\s|$)", " ".join(launcher))
    return int(said[2]) if said else None


def _until_end(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments up to a redirection of what is printed."""
    ends = [i for i, word in enumerate(arguments) if re.match(r"(2?>|&>|\|)", word)]
    return arguments[: ends[0]] if ends else arguments
