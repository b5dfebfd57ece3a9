"""Error messages for Python callers: an override `key.sub=value` in a message becomes a keyword argument.

Every error names its cure as the command line takes it; only this module knows the Python form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep import yaml12
from lockstep.errors import LockstepError

_OVERRIDE = re.compile(r"""(?<![\w.'"/?&=-])(?P<key>[a-z_]\w*(?:\.\w+)+)=(?P<value>'[^']*'|"[^"]*"|[^\s;,)`'"]+)""")
_PLACEHOLDER = re.compile(r"…|[A-Z]+")


@contextmanager
def speak_python(section: str = "") -> Iterator[None]:
    """Rewrites the cures in messages of errors that the block raises as keyword arguments.

    Args:
        section: The section of a recipe whose options the function takes directly as arguments; empty: none.
    """
    try:
        yield
    except LockstepError as error:
        error.args = (translate_overrides(str(error), section), *error.args[1:])
        raise


def translate_overrides(message: str, section: str = "") -> str:
    """Rewrites `data.answer='""'` in a message as `data={"answer": ""}`; `section` is that of `speak_python`."""

    def rewrite(match: re.Match[str]) -> str:
        first, *rest = match["key"].removeprefix(f"{section}.").split(".")
        try:
            value = _spell(match["value"])
        except ValueError:  # no YAML, so no override
            return match[0]
        for name in reversed(rest):
            value = f'{{"{name}": {value}}}'
        return f"{first}={value}"

    return _OVERRIDE.sub(rewrite, message)


def _spell(value: str) -> str:
    """Converts a YAML value, perhaps in shell quotes, to a Python literal; placeholders such as `…` stay."""
    bare = value[1:-1] if value[0] in "'\"" else value
    if _PLACEHOLDER.fullmatch(bare):
        return bare
    parsed = yaml12.parse(bare)
    if isinstance(parsed, dict) and None in parsed.values():  # a template, such as {question}
        parsed = bare
    return json.dumps(parsed, ensure_ascii=False) if isinstance(parsed, str) else repr(parsed)
