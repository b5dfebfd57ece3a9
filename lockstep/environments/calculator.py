"""A calculator as an environment: the policy writes a calculation up to "=", and reads the result.

The tool of GSM8K's authors (Cobbe et al. 2021, §2), which takes over where a model would have to
calculate.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

_EXPRESSION = re.compile(r"(?<![\d.+\-*/() ])([\d.+\-*/() ]*+)=$")
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


class Calculator:
    """Implements `environment.Environment`.

    The policy's turn ends at "=", which is in `environment.stop`.

    The result comes with an end of line; what cannot be calculated gets the end of line alone. A
    response that ends otherwise ends the episode. Rewards are left to the recipe's `reward`.
    """

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Does nothing: there is nothing to set up."""

    def step(self, response: str) -> tuple[str, float | None, bool]:
        """See `Environment`."""
        match = _EXPRESSION.search(response)
        if match is None:
            return ("", None, True)
        return (f"{_result(match[1])}\n", None, False)


class CalculatorTool:
    """The calculator as a tool that the model's chat template describes; several calls of one turn
    are all answered.

    A response without a call ends the episode. Rewards are left to the
    recipe's `reward`.
    """

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Does nothing: there is nothing to set up."""

    def tools(self) -> list[Any]:
        """The tools that the policy may call."""
        return [self.calculate]

    def step(self, response: str) -> tuple[str, float | None, bool]:
        """See `Environment`."""
        return "", None, True

    def calculate(self, expression: str) -> str:
        """Calculates an expression.

        Args:
            expression: Numbers, parentheses and the operators + - * /.
        """
        return _result(expression) or "Error: not a calculation"


def _result(expression: str) -> str:
    """Returns the value of an expression as text; empty where it is none."""
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError, ValueError):
        return ""  # MemoryError: the parser's stack, by thousands of signs in a row
    return f"{value:.12g}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(left), _value(right))
        case ast.UnaryOp(operation, operand) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(operand))
        case _:
            raise ValueError("not a calculation")
