"""A calculator environment: the policy writes a calculation up to "=" and reads the result.

The calculator of the GSM8K paper (Cobbe et al. 2021, §2), which does the arithmetic for the model.
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

    The observation is the result and a newline, or only a newline for an invalid calculation. A
    response without "=" at its end ends the episode. The recipe's `reward` provides rewards.
    """

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Does nothing, since no setup is needed."""

    def step(self, response: str) -> tuple[str, float | None, bool]:
        """See `Environment`."""
        match = _EXPRESSION.search(response)
        if match is None:
            return ("", None, True)
        return (f"{_format_result(match[1])}\n", None, False)


class CalculatorTool:
    """The calculator as a tool for the model's chat template; answers all calls of a turn.

    A response without a call ends the episode. The recipe's `reward` provides rewards.
    """

    def reset(self, row: dict[str, Any], seed: int) -> None:
        """Does nothing, since no setup is needed."""

    def tools(self) -> list[Any]:
        """The tools that the policy can call."""
        return [self.calculate]

    def step(self, response: str) -> tuple[str, float | None, bool]:
        """See `Environment`."""
        return "", None, True

    def calculate(self, expression: str) -> str:
        """Calculates an expression.

        Args:
            expression: Numbers, parentheses and the operators + - * /.
        """
        return _format_result(expression) or "Error: not a calculation"


def _format_result(expression: str) -> str:
    """Returns the value of an expression as text; empty if it is invalid."""
    try:
        value = _evaluate_node(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError, ValueError):
        return ""  # MemoryError: thousands of consecutive signs overflow the parser's stack
    return f"{value:.12g}"


def _evaluate_node(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_evaluate_node(left), _evaluate_node(right))
        case ast.UnaryOp(operation, operand) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_evaluate_node(operand))
        case _:
            raise ValueError("not a calculation")
