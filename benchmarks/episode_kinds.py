"""Environments of `benchmarks.episodes`; this file imports nothing heavy, as their process does."""

from __future__ import annotations

import asyncio


class NoOp:
    """Answers at once, and never ends an episode."""

    def reset(self, row: dict[str, object], seed: int) -> None:
        """Does nothing."""

    def step(self, response: str) -> tuple[str, float | None, bool]:
        return "Then", 0.0, False


class AsyncNoOp(NoOp):
    """`NoOp` for the event loop."""

    async def step(self, response: str) -> tuple[str, float | None, bool]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "Then", 0.0, False


class AsyncSlow(NoOp):
    """Answers after 50 ms."""

    async def step(self, response: str) -> tuple[str, float | None, bool]:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0.05)
        return "Then", 0.0, False


class Tool(NoOp):
    """`NoOp` with a tool."""

    def tools(self) -> list[object]:
        return [self.add]

    def add(self, a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: One.
            b: Another.
        """
        return a + b
