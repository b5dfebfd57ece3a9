"""Tokenizers of the models: letters, words and bytes, some of which text does not bring back as they were."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Sequence
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from lockstep import keyed

_LETTERS, _PAIRED = 64, 512
SPARE_ROWS = {"seed oss, many spare rows": 40, "seed oss, few spare rows": 8}
"""How many rows of these have no token."""
_TWINS = (*"ＡＢＣＤＥＦＧＨＩＪＫＬＭＮＯＰＱＲＳＴＵＶＷＸＹＺａ", "\u212a", "\u212b", "\u2126")
"""Letters that a normalizer writes otherwise: NFKC all of them, NFC the last three."""
_PLAIN = (*"ABCDEFGHIJKLMNOPQRSTUVWXYZa", "K", "\u00c5", "\u03a9")
_FIRST_TWIN, _FIRST_PLAIN = 20, 200
_BYTES = {"bitnet, many bytes": 40, "bitnet, few bytes": 1}
"""How many tokens are single bytes that no character begins with."""
_FIRST_BYTE = 30
_REPLACEMENT = ("<0xEF>", "<0xBF>", "<0xBD>")
"""What stands for a byte that is no text."""


def pairs(name: str, key: int) -> Tokenizer:
    """Byte pairs over a small alphabet. Drawn ids are seldom those that it would choose for their text."""
    letters = [chr(ord("A") + place) for place in range(_LETTERS)]
    order = keyed.permutation(_LETTERS * _LETTERS, "merges", key)[: _PAIRED - _LETTERS].tolist()
    merges = [(letters[pair // _LETTERS], letters[pair % _LETTERS]) for pair in order]
    words = letters + [first + second for first, second in merges]
    tokenizer = Tokenizer(BPE(vocab={word: place for place, word in enumerate(words)}, merges=merges))
    tokenizer.decoder = Fuse()
    return tokenizer


def bracketed(name: str, key: int) -> Tokenizer:
    """Words, each in brackets."""
    return Tokenizer(WordLevel({f"<{token}>": token for token in range(384)}, unk_token="<0>"))


def spare(name: str, key: int) -> Tokenizer:
    """Words, but none for the last ids of some models."""
    words = {f"w{token}": token for token in range(448 - SPARE_ROWS.get(name, 0))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def numbered(name: str, key: int) -> Tokenizer:
    """Whole words."""
    return Tokenizer(WordLevel({f"t{token}": token for token in range(320)}, unk_token="t0"))


def twinned(name: str, key: int) -> Tokenizer:
    """Single letters, some of which a normalizer writes otherwise."""
    tokenizer = Tokenizer(BPE({letter: token for token, letter in enumerate(_twinned_letters())}, []))
    tokenizer.decoder = Fuse()
    return tokenizer


def _twinned_letters() -> list[str]:
    letters = [chr(0x4E00 + token) for token in range(416)]
    letters[_FIRST_TWIN : _FIRST_TWIN + len(_TWINS)] = _TWINS
    for place, letter in enumerate(_PLAIN):
        if letter not in letters:
            letters[_FIRST_PLAIN + place] = letter
    return letters


def twins() -> list[tuple[int, int]]:
    """Ids of letters that a normalizer writes otherwise, each with the id of what it writes."""
    letters = _twinned_letters()
    return [(_FIRST_TWIN + place, letters.index(letter)) for place, letter in enumerate(_PLAIN)]


def byte_ends(name: str, key: int) -> Tokenizer:
    """Single letters, and bytes that are no text."""
    letters = [chr(0x1200 + token) for token in range(400)]
    letters[-len(_REPLACEMENT) :] = _REPLACEMENT
    for place in range(_BYTES.get(name, 0)):
        letters[_FIRST_BYTE + place] = f"<0x{0x80 + place:02X}>"
    tokenizer = Tokenizer(BPE({letter: token for token, letter in enumerate(letters)}, [], byte_fallback=True))
    tokenizer.decoder = Sequence([ByteFallback(), Fuse()])
    return tokenizer
