"""Stop strings: a response ends with the token that completes one, and keeps that token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import dropwhile

from lockstep.core.errors import InputError
from lockstep.models.tokenizer import has_tokenizer, load_tokenizer


class StopStrings:
    """Finds stop strings in tokens.

    Whether a token completes one depends only on it and the tokens before it.

    Args:
        folder: Folder of the model, with its tokenizer.
        strings: The stop strings.

    Attributes:
        window: Number of newest tokens to search: the bytes of the longest string, since a token
            has at least one. A special token is decoded as its name, so no string spans it.
    """

    def __init__(self, folder: str, strings: tuple[str, ...]) -> None:
        if not has_tokenizer(folder):
            raise InputError(
                f"sampling.stop needs a tokenizer, but {folder or 'the model'} has none; leave it "
                "out"
            )
        self._tokenizer = load_tokenizer(folder)
        self._strings = strings
        # Text is decoded after a letter, since some tokenizers drop the space before the first
        # word.
        self._letter = self._tokenizer.encode("a", add_special_tokens=False)
        self._before = len(self._decode_text([]))
        self.window = max(len(string.encode()) for string in strings)
        vocabulary = self._tokenizer.get_vocab()
        self._continuations = {vocabulary.get(f"<0x{byte:02X}>") for byte in range(0x80, 0xC0)}

    def contains_stop(self, tokens: Sequence[int]) -> bool:
        """True if the text of a response's newest tokens contains a stop string."""
        # A byte-level decoder loses the neighbors of a partial character, so none is at the
        # beginning.
        complete = dropwhile(self._continuations.__contains__, tokens[-self.window :])
        text = self._decode_text([*complete])[self._before :]
        return any(string in text for string in self._strings)

    def _decode_text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode([*self._letter, *tokens], skip_special_tokens=False))

    def find_end(self, tokens: Sequence[int], checked: int = 0) -> int | None:
        """Number of a response's tokens up to the first that completes a string; None if none does.

        Args:
            tokens: The response so far.
            checked: Number of leading tokens that were searched before and complete none.
        """
        ends = range(checked + 1, len(tokens) + 1)
        return next(
            (end for end in ends if self.contains_stop(tokens[max(0, end - self.window) : end])),
            None,
        )


@lru_cache(8)
def open_stop_strings(folder: str, strings: tuple[str, ...]) -> StopStrings:
    """Opens the stop strings of a model; cached, since it reads the tokenizer.

    Raises:
        InputError: The folder's tokenizer is missing.
    """
    return StopStrings(folder, strings)
