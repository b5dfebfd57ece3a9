"""Tokenizers: built from the words of a small data set, or read from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lockstep.core.errors import InputError, first_line
from lockstep.models.folder import read_json, require_folder

PAD = "<pad>"
EOS = "<eos>"
UNK = "<unk>"

# A word takes the space before it; a word or sign also takes the space between it and a number. So
# a number never holds a space, and 5 is the same token in "has 5 apples", "5+4=9" and "#### 5". The
# alternatives cover every character, so nothing is lost: decoding gives back the text byte for
# byte.
_PIECES = r" ?\p{L}+(?: (?=[0-9]))?|[0-9]+|([^\s\p{L}0-9])\1*(?: (?=[0-9]))?|\s"

# A model should be able to emit every number in the range of its data, not only those seen. If
# numbers are large, the range would be nearly all of the vocabulary, so only seen numbers are
# taken.
_LARGEST_FILLED_RANGE = 1000

# Synthetic data repeats itself, and splitting is slow. Not every text is cached: data may be larger
# than memory.
_REMEMBERED = 1 << 14

# For these classes tokenizer.json is the complete tokenizer. AutoTokenizer overrides that if
# config.json names certain architectures (qwen2 among them, transformers 5.19): it then wraps the
# vocabulary in that architecture's splitting, which breaks every other tokenizer, ours included. So
# they are opened by their own class name.
_GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def words_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Builds a tokenizer: one token per word, number, run of one sign, and newline of the texts.

    The order of the vocabulary depends only on the set of pieces: special tokens, numbers, then the
    rest by code point.

    Args:
        texts: All text that must survive encoding; anything else becomes `<unk>`.

    Returns:
        A tokenizer with `decode(encode(x)) == x` for every text it was built from.
    """
    splitter = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    pieces: set[str] = set()

    @lru_cache(_REMEMBERED)
    def split_words(text: str) -> None:
        pieces.update(piece for piece, _ in splitter.pre_tokenize_str(text))

    for text in texts:
        split_words(text)
    numbers = {piece for piece in pieces if piece.isascii() and piece.isdigit()}
    largest = max(map(int, numbers), default=-1)
    if largest <= _LARGEST_FILLED_RANGE:
        filled = set(map(str, range(largest + 1)))
    else:
        filled = set()
    ordered = [
        PAD,
        EOS,
        UNK,
        *sorted(numbers | filled, key=lambda n: (int(n), n)),
        *sorted(pieces - numbers),
    ]

    tokenizer = Tokenizer(
        models.WordLevel({piece: i for i, piece in enumerate(ordered)}, unk_token=UNK)
    )
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def has_tokenizer(folder: str | Path) -> bool:
    """True if a folder has a tokenizer's files."""
    return any((Path(folder) / name).is_file() for name in _TOKENIZER_FILES)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Reads the tokenizer of a local Hugging Face folder.

    Raises:
        ValueError: The folder or its tokenizer is missing, or the tokenizer cannot be read.
    """
    folder = require_folder(folder)
    # Checked first: for a folder with only a config.json, transformers silently returns an empty
    # tokenizer.
    if not has_tokenizer(folder):
        raise InputError(
            f"{folder}: has no tokenizer (tokenizer.json or {', '.join(_TOKENIZER_FILES)}); copy "
            "the tokenizer's files into it"
        )
    opener = PreTrainedTokenizerFast if is_generic(folder) else AutoTokenizer
    try:
        tokenizer = opener.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        tokenizer("a")  # some values are only read here
    except Exception as error:  # tokenizers raises bare exceptions
        if type(error) is Exception:
            why = first_line(error)
        else:
            why = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            f"{folder}: its tokenizer cannot be read ({why}); save it again from its source"
        ) from error
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        model = tokenizer.backend_tokenizer.model
        if isinstance(model, models.BPE) and model.dropout:
            raise InputError(
                f"{folder}: its tokenizer is random (dropout is {model.dropout:g} in "
                "tokenizer.json); remove the dropout"
            )
    unknown = tokenizer.unk_token
    if unknown is not None and unknown not in tokenizer.get_vocab():  # transformers would hang
        raise InputError(
            f"{folder}: unk_token in tokenizer_config.json is {unknown!r}, which is not in the "
            "vocabulary; use a token that is, or remove unk_token"
        )
    return tokenizer


def is_generic(folder: Path) -> bool:
    """True if tokenizer.json is a folder's complete tokenizer, for any architecture."""
    config = folder / "tokenizer_config.json"
    if not ((folder / "tokenizer.json").is_file() and config.is_file()):
        return False
    return read_json(folder, config.name, "").get("tokenizer_class") in _GENERIC_CLASSES
