"""Rows in plain English with one right answer each: the opposite of a word.

The optimum is known: a response earns at most 1. Words of held-out rows are in no row of training.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

MOST_WORDS = 8
"""A longer response earns nothing: the task asks for one word, and a sentence is tolerated."""
TRAINED = {
    "hot": "cold", "big": "small", "up": "down", "day": "night", "rich": "poor", "wet": "dry", "full": "empty",
    "hard": "soft", "fast": "slow", "happy": "sad", "left": "right", "open": "closed", "early": "late", "true": "false",
    "heavy": "light", "thick": "thin", "strong": "weak", "clean": "dirty", "high": "low", "love": "hate",
    "win": "lose", "buy": "sell", "begin": "end", "inside": "outside", "above": "below", "male": "female",
    "push": "pull", "noisy": "quiet", "easy": "difficult", "alive": "dead", "wide": "narrow", "smooth": "rough",
}  # fmt: skip
HELD_OUT = {
    "tall": "short", "old": "young", "black": "white", "good": "bad", "deep": "shallow", "sharp": "dull",
    "first": "last", "summer": "winter", "bright": "dark", "north": "south", "before": "after", "cheap": "expensive",
    "positive": "negative", "sweet": "bitter", "brave": "cowardly", "friend": "enemy",
}  # fmt: skip


def write_rows(file: Path, pairs: dict[str, str]) -> None:
    """Writes a row for each pair."""
    file.write_text(
        "".join(f"{json.dumps(_row(*pair))}\n" for pair in pairs.items()), encoding="utf-8"
    )


def ask_opposite(word: str) -> str:
    """The question."""
    return f"What is the opposite of {word}? Answer with one word."


def _row(word: str, opposite: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": ask_opposite(word)}], "answer": opposite}


def name_opposite(prompt: str, response: str, answer: str, row: object) -> float:
    """1 if a short response has the right word."""
    words = re.findall("[a-z]+", response.lower())
    return float(answer in words and len(words) <= MOST_WORDS)
