"""Conversion between a row and the one text from which its prompt is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.config import DataSection
from lockstep.core.errors import InputError
from lockstep.data.rows import DataRow
from lockstep.data.templates import fill_template, list_fields, read_field


@dataclass(frozen=True)
class TextField:
    """The one field of a row from which its prompt is made.

    Attributes:
        name: Name of the field.
        talk: Whether it holds messages, with the first user message as the text; else it is the
            text.
    """

    name: str
    talk: bool

    def read_text(self, row: DataRow) -> str:
        """The text of a row; empty if its messages have none from a user."""
        if not self.talk:
            return fill_template(f"{{{self.name}}}", row, "row")
        for message in read_field(row, self.name):
            if message["role"] == "user":
                return str(message.get("content") or "")
        return ""

    def build_row(self, text: str) -> dict[str, Any]:
        """A row with this text."""
        return {self.name: [{"role": "user", "content": text}] if self.talk else text}


def text_field(data: DataSection) -> TextField:
    """Returns the field that holds the text of a section's rows.

    Raises:
        ValueError: A prompt is made from several fields, or from none.
    """
    if data.messages is not None:
        return TextField(data.messages, talk=True)
    names = sorted(set(list_fields(data.prompt)))
    if len(names) != 1:
        raise InputError(
            "self_rewarding.prompt_source=new generates one text per prompt, but data.prompt has "
            f"{len(names)} fields{': ' if names else ''}{', '.join(names)}; use a template with "
            "one field"
        )
    return TextField(names[0], talk=False)
