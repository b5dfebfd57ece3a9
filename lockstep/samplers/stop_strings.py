"""Stop strings: a response ends with the token that completes one of them, and keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lockstep.errors import InputError
from lockstep.models.tokenizer import has_tokenizer, load_tokenizer


class StopStrings:
    """Stop strings in the words of a tokenizer; whether a token completes one depends on the tokens before it alone.

    Args:
        folder: Of the model, with its tokenizer.
        strings: The stop strings.

    Attributes:
        window: The newest tokens of a response that are looked at: as many as the longest string has bytes, and a token
            has a byte at least. A special token counts with its name, so that no string goes across it.
    """

    def __init__(self, folder: str, strings: tuple[str, ...]) -> None:
        if not has_tokenizer(folder):
            raise InputError(
                f"stop strings need the model's tokenizer, and {folder or 'the model'} has none; leave "
                "sampling.stop out"
            )
        self._tokenizer, self._strings = load_tokenizer(folder), strings
        # Text is read behind a letter, since some tokenizers drop the space before the first word.
        self._letter = self._tokenizer.encode("a", add_special_tokens=False)
        self._before = len(self._read([]))
        self.window = max(len(string.encode()) for string in strings)

    def completes(self, tokens: Sequence[int]) -> bool:
        """True if the newest tokens of a response have a stop string in their text."""
        text = self._read(tokens[-self.window :])[self._before :]
        return any(string in text for string in self._strings)

    def _read(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode([*self._letter, *tokens], skip_special_tokens=False))

    def find_end(self, tokens: Sequence[int], known: int = 0) -> int | None:
        """Number of a response's tokens up to the first that completes a string; None: none does.

        Args:
            tokens: The response so far.
            known: Tokens of it that are known to complete none.
        """
        ends = range(known + 1, len(tokens) + 1)
        return next((end for end in ends if self.completes(tokens[max(0, end - self.window) : end])), None)


@lru_cache(8)
def open_stop_strings(folder: str, strings: tuple[str, ...]) -> StopStrings:
    """The stop strings of a model, whose tokenizer is read once.

    Raises:
        InputError: The folder has no tokenizer.
    """
    return StopStrings(folder, strings)
