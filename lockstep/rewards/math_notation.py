"""Normalizes one math expression, as people and models write it, to parsable LaTeX.

Unknown notation is rejected, because part of an answer is a different answer. All functions run in
linear time.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 1000
"""Maximum number of characters of an expression."""

_SIGNS = str.maketrans(
    {
        **{0xFF01 + offset: chr(0x21 + offset) for offset in range(94)},  # full-width forms
        **dict.fromkeys("\u2212\ufe63\u2010\u2011\u2013", "-"),
        **dict.fromkeys("\u200b\u200e\u2060\ufeff", ""),
        "√": "sqrt", "×": r"\times ", "÷": "/", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ",
        "、": ",",
        "≠": r"\ne ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
        "∞": r"\infty ", "°": r"^\circ ", "π": r"\pi ", "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    }
)  # fmt: skip
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_ROOT = re.compile(r"√\s*(\d+|[A-Za-z])")


def _split_words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|limits|bigl?|bigr|Bigl?|Bigr|left\.|right\.)(?![A-Za-z])|\\label\{[^{}]*\}"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:> ]|\\(?:quad|qquad|thinspace|enspace)(?![A-Za-z])|(?<!\\)~")
_GROUPS = re.compile(
    r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\!,\\!|\\!,|, ?\\!|\\[,;: ]|~| )\d{3})+(?!\d)"
)
_COMMAS = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?![\d,]|,\d)")
_NO_DIGIT = re.compile(r"[^\d]")
_POWER_OF_TEN = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,9})(?![\w.])")
_MIXED = re.compile(r"(?<![\w.}/])(\d{1,9}) +(\d{1,9})/(\d{1,9})(?![\w/.])")
_BASE = re.compile(
    r"(?<![\w.}])(-?)(\d[0-9A-F]*(?:\.[0-9A-F]+)?)_\{?(?:\\text\{)?(\d{1,2})\}{0,2}(?![\w.])"
)
_REPEATING = re.compile(
    r"(?<![\w.}])(\d{0,40})\.(\d{0,40})\\(?:overline|bar|dot)\s*\{?(\d{1,40})\}?(?![\w.])"
)
_REFUSED = re.compile(r"\\[lcd]?dots|\.\.|…|\x00|:.*(?::|[aApP]\.?[mM]\b)")
"""Notations to reject: open-ended lists, ratios of three, and times of day."""
_UNREAD = re.compile(r"[\d)]_|'")

_CURRENCY = "$€£¥₹₩₽"
_LEADING = re.compile(
    rf"^(-?)\s*(?:(?:US|USD|Rs\.?)\s*)?(?:\\?\$|\\pounds|\\euro|[{_CURRENCY[1:]}])\s*(?=[-\d.\\])"
)
_TEXT = r"\\(?:text|mbox|textrm|mathrm|textnormal|textit|textbf|mathit|mathbf|rm|operatorname)"
_TRAILING_TEXT = re.compile(
    rf"(?:[\s\-/~]|\\cdot)*(?:{_TEXT}\s*\{{([^{{}}]*)\}})[\s.]*(?:\^\s*\{{?\s*-?\d\s*\}}?)?[\s.]*$"
)
_DEGREES = re.compile(
    r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))\s*(?:\\text\{\s*[CF]\s*\}|[CF])?\s*$"
)
_ONLY_TEXT = re.compile(rf"\s*{_TEXT}\s*\{{([^{{}}]*)\}}\s*")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:\s*/\s*\d+)?"
_UNITS = _split_words(
    "mm cm dm km ft in yd mi kg mg ug lb lbs oz ml mL cl dl gal hr hrs min mins sec secs ms ns "
    "kph mph kmh Hz kHz kW kWh am pm AM PM KB MB GB TB kB px pt pts qt cc sq cu rs Rs st nd rd th "
    "m/s km/h mi/h ft/s m/min cal kcal kJ kPa kN"
)
_SCALES = "dozen|hundred|thousand|lakh|million|crore|billion|trillion"
_ORDINALS = "third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth"
_CHANGING = re.compile(
    rf"[\s\-~]*(?:(?:{_SCALES})s?\b(?:\s+(?:and\s+)?\d[\d,.]*)?"
    rf"|(?:per\s?cent|pct|percentage|bn|mn|gross|googol|squared|cubed|halves|(?:{_ORDINALS})s)\b"
    rf"|(?:half|{_ORDINALS})(?=[\s.}}]*$)|(?:half|quarters?|{_ORDINALS})(?=\s+of\b)"
    r"|(?:[a-z]+\s+)?and\s+(?:an?\s+|one\s+)?(?:half|quarter|third|fourth|fifth|eighth|tenth)\b)"
)
_PER_CENT = re.compile(r"\bper\s+cent\b")
_RANGE = re.compile(r"\d+(?:\.\d+)?%?-\d+(?:\.\d+)?%?")
_LETTERS = _split_words("m g s h l L")
_FUNCTIONS = _split_words(
    "sqrt sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp pi and or inf "
    "infinity percent pct percentage max min gcd lcm mod det"
)
_WORDS = _split_words(
    "yes no none the one two six ten all not any odd his her for per is it of to an by if at as "
    "be we so he she they was are but out has had you"
)
_COMMAND = re.compile(r"\\begin\{[a-z]+\*?\}(?:\{[^{}]*\})?|\\end\{[a-z]+\*?\}|\\[A-Za-z]+")
_LETTER_RUN = re.compile(r"[A-Za-z]{2,}")


def read_expression(text: str, boxed: bool = False) -> str | None:
    """Returns an answer as LaTeX without units; None if it does not parse completely.

    Args:
        text: Only the answer, as LaTeX or plain text.
        boxed: True if the text was in a box or between dollar signs, where a single word is also an
            answer.
    """
    if len(text) > LONGEST:
        return None
    # signs of other alphabets become LaTeX, and all white space spaces
    text = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}", text)
    text = re.sub(r"\s", " ", _ROOT.sub(r"sqrt(\1)", text).translate(_SIGNS))
    # math delimiters, stars and sentence endings do not count
    text = _STYLE.sub("", text).strip().strip("*").rstrip(" .。,;")
    inner = text[1:-1]
    if text[:1] == text[-1:] == "$" and "$" not in inner:
        text = inner.strip()
    text = _PER_CENT.sub("percent", text)
    if _REFUSED.search(text):
        return None
    word = _read_word(text, boxed)
    if word is not None:
        return word or None
    text = _LEADING.sub(r"\1", text)
    # separators of thousands, as in 1,000 or 10\,000
    text = _GROUPS.sub(lambda number: _NO_DIGIT.sub("", number[0]), text)
    if not re.search(r"[(\[{]", text):  # in brackets a comma separates elements
        text = _COMMAS.sub(lambda number: number[0].replace(",", ""), text)
    text = _strip_units(_SPACE.sub(" ", text).strip())
    if not text or _holds_words(text) or (not boxed and _RANGE.fullmatch(text)):
        return None
    # powers of ten, mixed numbers, repeating decimals and bases become full LaTeX
    text = text.replace("**", "^").replace(r"\varnothing", r"\emptyset")
    text = _POWER_OF_TEN.sub(r"\1\\times 10^{\2}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _BASE.sub(_write_base, _REPEATING.sub(_write_repeating, text))
    if _UNREAD.search(text) or not text.isascii():
        return None
    return text


def find_changing_words(behind: str) -> str:
    """Returns words after a number that change its value, such as dozen or percent; else empty."""
    words = _CHANGING.match(behind)
    if words is not None:
        return words[0]
    return ""


def _read_word(text: str, boxed: bool) -> str | None:
    """Reads an answer that consists of words, empty if unreadable; None for any other answer."""
    only = _ONLY_TEXT.fullmatch(text)
    if only is None and not (
        boxed and re.fullmatch(r"[A-Za-z][A-Za-z ]*[A-Za-z]", text) and _holds_words(text)
    ):
        return None
    word = (only[1] if only else text).strip().strip("().").casefold()
    if re.fullmatch(r"[a-z][a-z \-']*", word):
        return rf"\text{{{re.sub('[^a-z]', '', word)}}}"
    return ""


def _strip_units(text: str) -> str:
    """Removes units from the end of an answer."""
    text = _DEGREES.sub("", text)
    unit = _TRAILING_TEXT.search(text)
    while unit is not None and unit.start() > 0:
        words = unit[1]
        changes_value = find_changing_words(words) or words.strip() in {"and", "or"}
        if changes_value or any(sign.isdigit() for sign in words):
            break
        text = text[: unit.start()]
        unit = _TRAILING_TEXT.search(text)
    return _strip_bare_unit(text.strip())


def _strip_bare_unit(text: str) -> str:
    """Removes words from a number, as in 18 dollars or 5 km/h; keeps algebra, as in 5ab."""
    match = re.match(
        rf"({_NUMBER}|\d{{1,9}} "
        rf"+\d{{1,9}}/\d{{1,9}}|[-+]?\d*\\[dt]?frac\{{\d+\}}\{{\d+\}})(\s*-?)(?=[^\d\s])",
        text,
    )
    if match is None:
        return text
    if find_changing_words(text[match.end() :]):
        return text
    words = text[match.end() :].strip().rstrip(".")
    if not re.fullmatch(r"[^\d\\{}()\[\]=<>+*_!,:;|%]+(?:\^\{?[23]\}?)?", words):
        return text
    first = re.match(r"[^\s^]+", words)
    if first is None or first[0] in _FUNCTIONS - _UNITS:
        return text
    spaced = bool(match[2])
    if _is_bare_unit(first[0].rstrip("."), spaced, words):
        return match[1]
    return text


def _is_bare_unit(word: str, spaced: bool, words: str) -> bool:
    if not word.isascii():
        return True
    if word in _UNITS:
        return True
    if word in _LETTERS:
        return spaced and "^" not in words and len(words) == 1
    letters = word.replace("-", "").replace("'", "").replace("/", "")
    return letters.isalpha() and len(letters) >= (3 if spaced else 5)


def _holds_words(text: str) -> bool:
    """True if an expression has plain words, which would parse as products of letters."""
    words = _LETTER_RUN.findall(_COMMAND.sub(" ", text))
    return any(
        word not in _FUNCTIONS and (len(word) >= 4 or word.casefold() in _WORDS) for word in words
    )


def _write_base(number: re.Match[str]) -> str:
    """Converts a number in another base to a symbol, so that 101₂ does not equal 101."""
    return rf"{number[1]}\text{{base{number[3]}n{number[2].casefold().replace('.', 'p')}}}"


def _write_repeating(number: re.Match[str]) -> str:
    whole, fixed, again = (number[i] for i in (1, 2, 3))
    top = int(whole + fixed + again) - int((whole + fixed) or "0")
    return rf"\frac{{{top}}}{{{'9' * len(again)}{'0' * len(fixed)}}}"
