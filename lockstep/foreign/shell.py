"""Reads the arguments of a training command from a shell script, without running anything."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lockstep import yaml12
from lockstep.errors import InputError
from lockstep.foreign.words import Json

_ASSIGNMENT = re.compile(r"(?:(?:export|readonly|local|declare(?:\s+-\w+)?)\s+)?([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"^\s*(?:declare\s+-a\s+)?([A-Za-z_]\w*)\+?=\(\s*$")
_HEREDOC = re.compile(r"^\s*read\b.*\s([A-Za-z_]\w*)\s*<<-?\s*['\"]?(\w+)['\"]?\s*$")
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


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains: its program, the processes that it starts, and its arguments."""

    program: str
    processes: int | None
    arguments: tuple[str, ...]

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
                found[flag] = parse_value(value) if equals else True
                flag = None if equals else flag
            elif flag is not None:
                found[flag] = _append(found[flag], parse_value(word))
            elif override is not None:
                found[override[1]] = parse_value(override[2])
        return found


def find_command(script: str) -> TrainingCommand:
    """Finds the command with the most arguments of those that start a known program.

    Raises:
        InputError: There is none.
    """
    reader = _Script()
    commands = [command for line in _join_lines(script) if (command := reader.read(line)) is not None]
    if not commands:
        raise InputError(
            "no command of verl, TRL or OpenRLHF is in it, such as python3 -m verl.trainer.main_ppo key=value"
        )
    return max(commands, key=lambda command: len(command.arguments))


def parse_value(text: str) -> Json:
    """A value as YAML reads it; text where it is no YAML."""
    try:
        return yaml12.parse(text)
    except ValueError:
        return text


def _append(value: Json, more: Json) -> Json:
    """The values of a flag: none is true, one is itself, several are a list."""
    if value is True:
        return more
    return [*value, more] if isinstance(value, list) else [value, more]


def _join_lines(script: str) -> Iterator[str]:
    """Lines, each with those that a backslash, an array or a here-document adds to it, and no comments."""
    lines = iter(script.replace("\\\r\n", "\\\n").splitlines())
    for line in lines:
        heredoc, array = _HEREDOC.match(line), _ARRAY.match(line)
        if heredoc is not None:
            yield f"{heredoc[1]}={shlex.quote(_collect(lines, heredoc[2]))}"
            yield f"${heredoc[1]}"  # what its script gives to a launcher
            continue
        if array is not None:
            yield f"{array[1]}={shlex.quote(_collect(lines, ')'))}"
            continue
        while line.rstrip().endswith("\\") and not line.lstrip().startswith("#"):
            line = line.rstrip()[:-1] + " " + _drop_comment(next(lines, ""))
        yield line


def _collect(lines: Iterator[str], end: str) -> str:
    """The text up to a line with nothing but `end`."""
    found: list[str] = []
    for line in lines:
        if line.strip() == end:
            break
        found.append(_drop_comment(line).rstrip().removesuffix("\\"))
    return " ".join(found)


def _drop_comment(line: str) -> str:
    return "" if line.lstrip().startswith("#") else line


@dataclass
class _Script:
    """Reads a script line by line, and keeps its variables."""

    variables: dict[str, str] = field(default_factory=dict)

    def read(self, line: str) -> TrainingCommand | None:
        """The command of a line, if it starts a known program."""
        try:
            words = shlex.split(_ARITHMETIC.sub(lambda match: match[0].replace(" ", ""), line), comments=True)
        except ValueError:
            return None
        while words and _ASSIGNMENT.fullmatch(words[0]) and "." not in words[0].partition("=")[0]:
            self._assign(words.pop(0))
        if words and words[0] in ("export", "readonly", "local", "declare"):
            for word in words[1:]:
                self._assign(word)
            return None
        return _make_command([part for word in words for part in self._expand(word)])

    def _assign(self, word: str) -> None:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            return
        earlier = self.variables.get(match[1], "") if "+=" in word.partition("=")[0] + "=" else ""
        self.variables[match[1]] = earlier + self._fill(match[2])

    def _expand(self, word: str) -> list[str]:
        """A word with its variables filled in; one that is a single variable becomes the words that it holds."""
        filled = self._fill(word)
        if not _VARIABLE.fullmatch(word) or " " not in filled:
            return [filled]
        try:
            return shlex.split(filled, comments=True)
        except ValueError:
            return [filled]

    def _fill(self, text: str, depth: int = 0) -> str:
        filled = _VARIABLE.sub(lambda match: _lookup(match, self.variables), text)
        filled = _ARITHMETIC.sub(lambda match: _calculate(match, self.variables), filled)
        return filled if filled == text or depth > _DEEPEST else self._fill(filled, depth + 1)


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
    return TrainingCommand(program, _count_processes(words[:at]), _until_end(arguments)) if arguments else None


def _count_processes(launcher: list[str]) -> int | None:
    """The processes that a launcher is told to start; None where it is not told."""
    said = re.search(rf"({'|'.join(_PROCESSES)})[= ](\d+)(\s|$)", " ".join(launcher))
    return int(said[2]) if said else None


def _until_end(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments up to a redirection of what is printed."""
    ends = [i for i, word in enumerate(arguments) if re.match(r"(2?>|&>|\|)", word)]
    return arguments[: ends[0]] if ends else arguments
