"""The reward of a response."""

from __future__ import annotations

from typing import Any


def even_digits(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """The share of characters that are even digits."""
    return sum(character in "02468" for character in response) / max(1, len(response))
