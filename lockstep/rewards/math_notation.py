"""Notation of mathematical answers: one expression, as people and models write it, as LaTeX that is read whole.

What is not understood is refused: a part of an answer is another answer. Every function takes time linear in its text.
"""

from __future__ import annotations

import re

LONGEST = 1000
"""Characters of an expression; a longer one is refused."""

_DEEPEST = 50


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SPACES = "\u00a0\u2002\u2003\u2007\u2008\u2009\u202f\u3000"
_UNSEEN = "\u200b\u200e\u2060\ufeff"
_SIGNS = str.maketrans(
    {
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **dict.fromkeys("\u2212\ufe63\uff0d\u2010\u2011\u2013", "-"),
        **dict.fromkeys("\uff0b\ufe62", "+"),
        **dict.fromkeys("\uff0c、", ","),
        **dict.fromkeys(_SPACES, "\u2006"),
        **dict.fromkeys(_UNSEEN, ""),
        **dict(zip("\uff08\uff09\uff1a\uff1b\uff1d\uff05\uff0e÷", "():;=%./", strict=True)),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        **dict.fromkeys("≤⩽", r"\le "),
        **dict.fromkeys("≥⩾", r"\ge "),
    }
    | {
        "×": r"\times ", "≠": r"\ne ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ",
        "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∞": r"\infty ", "°": r"^\circ ", "π": r"\pi ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ",
        "φ": r"\phi ", "ω": r"\omega ",
    }
)  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SMALL = re.compile(f"[{''.join(_RAISED)}]+|[{''.join(_LOWERED)}]+")
_ROOT = re.compile(r"√\s*(?:(\d+|[A-Za-z])|(?=[({]))")

_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|limits|bigl?|bigr|Bigl?|Bigr|left\.|right\.)(?![A-Za-z])|\\label\{[^{}]*\}"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:> ]|\\(?:quad|qquad|thinspace|enspace)(?![A-Za-z])|(?<!\\)~|\u2006")
_GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\!,\\!|\\!,|, ?\\!|\u2006|\\[,;: ]|~| )\d{3})+(?!\d)")
_COMMAS = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?![\d,]|,\d)")
_NO_DIGIT = re.compile(r"[^\d]")
_POWER_OF_TEN = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,9})(?![\w.])")
_MIXED = re.compile(r"(?<![\w.}/])(\d{1,9}) +(\d{1,9})/(\d{1,9})(?![\w/.])")
_BASE = re.compile(r"(?<![\w.}])(-?)(\d[0-9A-F]*(?:\.[0-9A-F]+)?)_\{?(?:\\text\{)?(\d{1,2})\}{0,2}(?![\w.])")
_REPEATING = re.compile(r"(?<![\w.}])(\d{0,40})\.(\d{0,40})\\(?:overline|bar|dot)\s*\{?(\d{1,40})\}?(?![\w.])")
_PARTS = re.compile(r"\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?){2,9}")
_TIME = re.compile(r"(\d{1,2})\s*:\s*([0-5]\d)\s*(?:\\text\{\s*)?([aApP])\.?\s*[mM]\.?\s*\}?")
_HOUR = re.compile(r"(\d{1,2})\s*:\s*(0\d)")

_CURRENCY = "$€£¥₹₩₽"
_LEADING = re.compile(rf"(-?)\s*(?:(?:US|USD|Rs\.?)\s*)?(?:\\?\$|\\pounds|\\euro|[{_CURRENCY[1:]}])\s*(?=[-\d.\\])")
_TEXT = r"\\(?:text|mbox|textrm|mathrm|textnormal|textit|textbf|mathit|mathbf|rm|operatorname)"
_TRAILING_TEXT = re.compile(
    rf"(?:[\s\-/~]|\\cdot)*(?:{_TEXT}\s*\{{([^{{}}]*)\}})[\s.]*(?:\^\s*\{{?\s*-?\d\s*\}}?)?[\s.]*$"
)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))\s*(?:\\text\{\s*[CF]\s*\}|[CF])?\s*$")
_ONLY_TEXT = re.compile(rf"\s*{_TEXT}\s*\{{([^{{}}]*)\}}\s*")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:\s*/\s*\d+)?"
_END_OF_NUMBER = re.compile(r"[\d})%]\s*$")
_UNITS = _split(
    "mm cm dm km ft in yd mi kg mg ug lb lbs oz ml mL cl dl gal hr hrs min mins sec secs ms ns kph mph "
    "kmh Hz kHz kW kWh am pm AM PM KB MB GB TB kB px pt pts qt cc sq cu rs Rs st nd rd th m/s km/h mi/h "
    "ft/s m/min cal kcal kJ kPa kN"
)
_SCALES = {
    "dozen": "12",
    "hundred": "10^{2}",
    "thousand": "10^{3}",
    "lakh": "10^{5}",
    "million": "10^{6}",
    "crore": "10^{7}",
    "billion": "10^{9}",
    "trillion": "10^{12}",
}
_SCALE_NAMES = "|".join(_SCALES)
_SCALE = re.compile(rf"({_NUMBER})\s*(?:\\text\{{\s*)?({_SCALE_NAMES})s?\b\s*(.*)", re.DOTALL)
_ORDINALS = "third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth"
_CHANGING = re.compile(
    rf"[\s\-~]*(?:(?:{_SCALE_NAMES})s?\b(?:\s+(?:and\s+)?\d[\d,.]*)?"
    rf"|(?:per\s?cent|pct|percentage|bn|mn|gross|googol|squared|cubed|halves|(?:{_ORDINALS})s)\b"
    rf"|(?:half|{_ORDINALS})(?=[\s.}}]*$)|(?:half|quarters?|{_ORDINALS})(?=\s+of\b)"
    r"|(?:[a-z]+\s+)?and\s+(?:an?\s+|one\s+)?(?:half|quarter|third|fourth|fifth|eighth|tenth)\b)"
)
_PER_CENT = re.compile(r"\bper\s+cent\b")
_RANGE = re.compile(r"\d+(?:\.\d+)?%?-\d+(?:\.\d+)?%?")
_LETTERS = _split("m g s h l L")
_NOT_UNITS = _split("and or sqrt frac pi sin cos tan log ln inf infinity xor not if")
_FUNCTIONS = _split(
    "sqrt sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp pi and or inf infinity "
    "percent pct percentage max min gcd lcm mod det"
)
_WORDS = _split("yes no none the one two six ten all not any odd his her for per is it of to an by if")
_ARTICLES = _split("a A I")
_COMMAND = re.compile(
    rf"{_TEXT}\s*\{{[^{{}}]*\}}|\\begin\{{[a-z]+\*?\}}(?:\{{[^{{}}]*\}})?|\\end\{{[a-z]+\*?\}}|\\[A-Za-z]+"
)
_LETTER_RUN = re.compile(r"[A-Za-z]{2,}")
_DOTS = re.compile(r"\\[lcd]?dots|\.\.|…")


def read_expression(text: str, boxed: bool = False) -> str | None:
    """Returns an answer as LaTeX, without units; None if it cannot be read whole.

    Args:
        text: The answer and nothing else, as LaTeX or bare.
        boxed: The text stood in a box or between dollars, where a word alone is an answer, too.
    """
    if len(text) > LONGEST or "\x00" in text:
        return None
    text = _spell(text).strip()
    text = _PER_CENT.sub("percent", _strip_ends(text))
    if not text or _is_too_deep(text) or _DOTS.search(text):
        return None
    alone = _read_word(text, boxed)
    if alone is not None:
        return alone or None
    text = _LEADING.sub(r"\1", text, count=1) if _LEADING.match(text) else text
    text = _join_thousands(text)
    text = _SCALE.sub(_write_scale, text, count=1) if _SCALE.match(text) else text
    text = _read_time(_SPACE.sub(" ", text).strip()) or _strip_units(_SPACE.sub(" ", text).strip())
    if (
        not text
        or _holds_words(text)
        or (not boxed and _RANGE.fullmatch(text))
        or (not boxed and _holds_sentence(text))
    ):
        return None
    written = _write_numbers(_write_groups(text))
    return written if written is not None and written.isascii() else None


def find_changing_words(behind: str) -> str:
    """Returns the words behind a number that make it another one, such as dozen or percent; empty if there are none."""
    words = _CHANGING.match(behind)
    return words[0] if words is not None else ""


def _spell(text: str) -> str:
    """Writes signs of other alphabets as LaTeX."""
    if text.isascii():
        return text
    text = _SMALL.sub(_spell_small, text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else "sqrt", text)
    return text.translate(_SIGNS)


def _spell_small(run: re.Match[str]) -> str:
    raised = run[0][0] in _RAISED
    names = _RAISED if raised else _LOWERED
    return f"{'^' if raised else '_'}{{{''.join(names[sign] for sign in run[0])}}}"


def _strip_ends(text: str) -> str:
    """Takes off math delimiters, stars, and the end of a sentence."""
    text = _STYLE.sub("", text).strip()
    for opening, closing in (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        text = text.rstrip(" .。,;") if text.endswith((".", "。", ",", ";")) else text
        inner = text[len(opening) : -len(closing)]
        if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
            text = inner.strip() if opening not in inner and closing not in inner else text
    return text.rstrip(" .。,;")


def _is_too_deep(text: str) -> bool:
    """True if brackets are nested so deep that a parser by recursion would end."""
    depth = 0
    for sign in text:
        if sign in "([{":
            depth += 1
            if depth > _DEEPEST:
                return True
        elif sign in ")]}":
            depth -= 1
    return False


def _read_word(text: str, boxed: bool) -> str | None:
    """The answer of a text that is only words; empty if they cannot be read, None if it is something else."""
    only = _ONLY_TEXT.fullmatch(text)
    if only is None and not (boxed and re.fullmatch(r"[A-Za-z][A-Za-z ]*[A-Za-z]", text) and _holds_words(text)):
        return None
    word = (only[1] if only else text).strip().strip("().").casefold()
    if re.fullmatch(r"[a-z][a-z \-']*", word):
        return rf"\text{{{re.sub('[^a-z]', '', word)}}}"
    if only and any(sign.isdigit() for sign in word) and not any(sign.isalpha() for sign in word):
        return read_expression(word)
    return ""


def _join_thousands(text: str) -> str:
    """Takes separators out of numbers such as 1,000 and 10\\,000; in brackets a bare comma separates elements."""
    text = _GROUPS.sub(lambda number: _NO_DIGIT.sub("", number[0]), text)
    text = text.replace("{,}", ",").replace(r"\!", "")
    if ", " not in text and re.search(r"[(\[{]", text):
        return text
    return _COMMAS.sub(lambda number: number[0].replace(",", ""), text)


def _read_time(text: str) -> str | None:
    """A time of day as a pair of hours and minutes; None for anything else."""
    named = _TIME.fullmatch(text)
    if named is not None:
        hours = int(named[1]) % 12 + (12 if named[3] in "pP" else 0)
        return rf"\{{({hours},{int(named[2])},24)\}}"
    bare = _HOUR.fullmatch(text)
    return rf"\{{({int(bare[1])},{int(bare[2])},0)\}}" if bare is not None else None


def _strip_units(text: str) -> str:
    """Takes units off the end of an answer."""
    for _ in range(4):
        shorter = _DEGREES.sub("", text)
        unit = _TRAILING_TEXT.search(shorter)
        if unit is not None and unit.start() > 0 and _is_unit(unit[1]):
            shorter = shorter[: unit.start()] + (r"\%" if _is_percent(unit[1]) else "")
        if shorter == text or not shorter.strip():
            break
        text = shorter.strip()
    text = re.sub(r"\s*\\?\$$", "", text) if _END_OF_NUMBER.search(text[:-2].rstrip("\\ ")) else text
    return _strip_bare_unit(text)


def _is_unit(words: str) -> bool:
    changing = find_changing_words(words) and not _is_percent(words)
    return not changing and not any(sign.isdigit() for sign in words) and words.strip() not in {"and", "or"}


def _is_percent(words: str) -> bool:
    return words.strip().casefold() in {"percent", "pct", "percentage", "%"}


def _strip_bare_unit(text: str) -> str:
    """Takes words off a number, as in 18 dollars or 5 km/h; letters that may be algebra stay, as in 5ab."""
    match = re.match(
        rf"({_NUMBER}|\d{{1,9}} +\d{{1,9}}/\d{{1,9}}|[-+]?\d*\\[dt]?frac\{{\d+\}}\{{\d+\}})(\s*-?)(?=[^\d\s])", text
    )
    if match is None:
        return text
    if find_changing_words(text[match.end() :]):
        return text
    words = text[match.end() :].strip().rstrip(".")
    if not re.fullmatch(r"[^\d\\{}()\[\]=<>+*_!,:;|%]+(?:\^\{?[23]\}?)?", words):
        return text
    first = re.match(r"[^\s^]+", words)
    if first is None or first[0] in _NOT_UNITS:
        return text
    spaced = bool(match[2])
    return match[1] if _is_bare_unit(first[0].rstrip("."), spaced, words) else text


def _is_bare_unit(word: str, spaced: bool, words: str) -> bool:
    if not word.isascii():
        return True
    if word in _UNITS or ("/" in word and all(part in _UNITS | _LETTERS for part in word.split("/"))):
        return True
    if word in _LETTERS:
        return spaced and "^" not in words and len(words) == 1
    letters = word.replace("-", "").replace("'", "").replace("/", "")
    return letters.isalpha() and len(letters) >= (3 if spaced else 5)


def _holds_sentence(text: str) -> bool:
    """True if words stand among the numbers of a bare text, short ones too."""
    words = _COMMAND.sub(" ", text).split()
    if len(words) > 1 and words[0] in _ARTICLES and words[1][0].isdigit():
        return True
    return len(words) > 1 and any(_is_plain_word(word) for word in words)


def _is_plain_word(word: str) -> bool:
    word = word.rstrip(".,:;")
    return len(word) > 1 and word.isalpha() and word not in _FUNCTIONS


def _holds_words(text: str) -> bool:
    """True if plain words stand in an expression, which would be read as products of letters."""
    for run in _LETTER_RUN.finditer(_COMMAND.sub(" ", text)):
        word = run[0]
        if word not in _FUNCTIONS and (len(word) >= 4 or word.casefold() in _WORDS):
            return True
    return False


def _write_scale(number: re.Match[str]) -> str:
    """A number of dozens or millions, with its unit as text; unchanged if more than a unit follows."""
    if find_changing_words(number[3]) or any(sign.isdigit() for sign in number[3]):
        return number[0]
    unit = rf"\text{{{number[3].rstrip('} ')}}}" if number[3].strip("} ") else ""
    return rf"{number[1]}\times {_SCALES[number[2]]}{unit}"


def _write_groups(text: str) -> str:
    """Writes `sqrt(…)` and `^(…)` with braces."""
    text = text.replace("**", "^").replace(r"\varnothing", r"\emptyset")
    pieces = list(text)
    opened: list[tuple[int, bool]] = []
    for i, sign in enumerate(text):
        if sign == "(":
            opened.append((i, text.endswith(("sqrt", "^"), 0, i)))
        elif sign == ")" and opened:
            start, grouped = opened.pop()
            if grouped:
                pieces[start], pieces[i] = "{", "}"
    return re.sub(r"(?<![\\A-Za-z])sqrt(?=\{)", r"\\sqrt", "".join(pieces))


def _write_numbers(text: str) -> str | None:
    """Writes powers of ten, mixed numbers, bases, ratios and repeating decimals as LaTeX that keeps all of them."""
    text = _POWER_OF_TEN.sub(r"\1\\times 10^{\2}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _REPEATING.sub(_write_repeating, text)
    text = _BASE.sub(_write_base, text)
    text = re.sub(r"([A-Za-z])'", r"\1_{prime}", text)
    text = re.sub(r"(\d)\.(?=$|[\s,;)}\]])", r"\1", text)
    if re.search(r"[\d)]_", text) or "'" in text:
        return None
    if _PARTS.fullmatch(text):
        return rf"({text.replace(':', ',')})"
    return text.strip() or None


def _write_base(number: re.Match[str]) -> str:
    """A number in another base, as a name: its digits alone are another number."""
    return rf"{number[1]}\text{{base{number[3]}n{number[2].casefold().replace('.', 'p')}}}"


def _write_repeating(number: re.Match[str]) -> str:
    whole, fixed, again = (number[i] for i in (1, 2, 3))
    top = int(whole + fixed + again) - int((whole + fixed) or "0")
    return rf"\frac{{{top}}}{{{'9' * len(again)}{'0' * len(fixed)}}}"
