"""Compares two math answers by math-verify with complete parsing; runs in a child process.

math-verify compares numbers to six decimals and reads an equation as its right side. So decimals
are first converted to exact fractions, and answers that it finds equal must also have equal values.
"""

from __future__ import annotations

import re

import sympy
from latex2sympy2_extended import (
    NormalizationConfig,
    is_expr_of_only_symbols,
    latex2sympy,
    normalize_latex,
)
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy import Basic, Eq, Expr, Float, I, MatrixBase, Rational

_NORMAL = NormalizationConfig(
    basic_latex=True,
    units=False,
    malformed_operators=True,
    nits=False,
    boxed="none",
    equations=False,
)
_PERCENT = re.compile(
    r"\s*\\?%\s*$|\s*\\text\{\s*(?:percent|pct|percentage)\s*\}\s*$|\s*\b(?:percentage|percent|pct)\s*$"
)
_DIGITS = 40
_MOST_PLACES = 4000  # for a decimal of the maximum answer length
_NEAR = Rational(1, 10**20)
_ROUNDED = Rational(101, 10**8)

MathValue = Basic | MatrixBase


def are_equal(right: str, found: str) -> bool:
    """True if two LaTeX answers are equal; 50% equals both 50 and 0.5."""
    right_number, right_percents = _PERCENT.subn("", right)
    found_number, found_percents = _PERCENT.subn("", found)
    real = not any(map(should_treat_as_complex, (right, found)))
    first = parse_latex(right_number, real)
    second = parse_latex(found_number, real)
    if first is None or second is None:
        return False
    if _are_same(first, second):
        return True
    if (
        right_percents == found_percents
        or not isinstance(first, Expr)
        or not isinstance(second, Expr)
    ):
        return False
    if right_percents:
        return _are_same(first / 100, second)
    return _are_same(first, second / 100)


def parse_latex(latex: str, real: bool = True) -> MathValue | None:
    """Parses an answer in LaTeX; None if any part of it does not parse."""
    try:
        value = latex2sympy(
            normalize_latex(latex, _NORMAL),
            is_real=real,
            convert_degrees=False,
            normalization_config=None,
        )
    except Exception:  # its parser raises bare exceptions, and sympy nearly every kind
        return None
    if not isinstance(value, Basic | MatrixBase):
        return None
    letters = [symbol for symbol in value.free_symbols if str(symbol) == "i"]
    if letters:
        return value.xreplace(dict.fromkeys(letters, I))
    return value


def _are_same(right: MathValue, found: MathValue) -> bool:
    # the equation of a curve, such as 3x+4y=0, whose right side is not an answer
    is_curve = (
        isinstance(found, Eq)
        and found.rhs == 0
        and found.free_symbols
        and not is_expr_of_only_symbols(found.lhs)
    )
    if is_curve and not (isinstance(right, Basic) and right.atoms(sympy.Rel)):
        return False
    exact = list(map(_make_exact, (right, found)))
    if _verify_equal(*exact) and _have_equal_values(*exact):
        return True
    return _is_rounded(right, found) and _verify_equal(right, found)


def _verify_equal(right: MathValue, found: MathValue) -> bool:
    return bool(verify(right, found, numeric_precision=_DIGITS, timeout_seconds=0))


def _make_exact(value: MathValue) -> MathValue:
    """Converts decimals to fractions."""
    floats = value.atoms(Float)
    if floats:
        return value.xreplace({number: Rational(str(number)) for number in floats})
    return value


def _have_equal_values(first: MathValue, second: MathValue) -> bool:
    """Checks numbers of answers that math-verify finds equal; True if they cannot be compared."""
    if isinstance(first, Eq) and isinstance(second, Eq):
        return _have_equal_solutions(first, second)
    if not isinstance(first, Expr) or not isinstance(second, Expr):
        return True
    if first.free_symbols != second.free_symbols:
        return True
    one = _evaluate_at(first, 0)
    other = _evaluate_at(second, 0)
    if one is None or other is None or one == 0 or other == 0:
        return True
    return bool(abs(one - other) <= _NEAR * max(abs(one), abs(other)))


def _have_equal_solutions(first: Eq, second: Eq) -> bool:
    """False if two equations are not multiples of each other and the first cannot be solved."""
    ratios = []
    for point in range(2):
        one = _evaluate_difference(first, point)
        other = _evaluate_difference(second, point)
        if one is None or other is None or other == 0:
            return True
        ratios.append(one / other)
    if abs(ratios[0] - ratios[1]) <= _NEAR * abs(ratios[0]):
        return True
    try:
        return bool(sympy.solve(first, first.free_symbols))
    except Exception:
        return False


def _evaluate_difference(equation: Eq, point: int) -> Expr | None:
    left = equation.lhs
    right = equation.rhs
    if isinstance(left, Expr) and isinstance(right, Expr):
        return _evaluate_at(left - right, point)
    return None


def _evaluate_at(value: MathValue, point: int) -> Expr | None:
    """Value of an expression at test point number `point`; None if it has no finite value."""
    if not isinstance(value, Expr):
        return None
    names = sorted(value.free_symbols, key=str)
    coordinates = {name: sympy.sqrt(7 + 4 * i + 13 * point) + point for i, name in enumerate(names)}
    try:
        number = sympy.N(value.xreplace(coordinates).doit(), _DIGITS)
    except Exception:
        return None
    if isinstance(number, Expr) and number.is_number and number.is_finite:
        return number
    return None


def _is_rounded(first: MathValue, second: MathValue) -> bool:
    """True for a number and its rounded decimal, such as 1/3 and 0.333333."""
    if (
        not isinstance(first, Expr)
        or not isinstance(second, Expr)
        or first.free_symbols
        or second.free_symbols
    ):
        return False
    decimals = list[bool]()
    for value in (first, second):
        exact = _make_exact(value)
        is_finite = isinstance(exact, Rational) and pow(10, _MOST_PLACES, int(exact.q)) == 0
        decimals.append(is_finite)
    if decimals[0] == decimals[1]:
        return False
    one = _evaluate_at(first, 0)
    other = _evaluate_at(second, 0)
    return one is not None and other is not None and bool(abs(one - other) <= _ROUNDED * abs(one))
