"""Plain objects for the proxy's tests to hold in another process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.errors import InputError


class Abacus:
    """Counts, and misbehaves on demand."""

    def __init__(self, start: int) -> None:
        self._total = start

    def add(self, number: int) -> int:
        self._total += number
        return self._total

    def echo(self, value: object, *, twice: bool = False) -> object:
        return (value, value) if twice else value

    def refuse(self) -> None:
        raise InputError("policy.lr is -1, but must be positive")

    def fail(self) -> None:
        raise LookupError("no such thing")

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "rested"

    def end(self, signal_number: int) -> None:
        os.kill(os.getpid(), signal_number)
        time.sleep(60.0)

    def leave(self, code: int) -> None:
        os._exit(code)

    def threads(self) -> int:
        return torch.get_num_threads()

    def pid(self) -> int:
        return os.getpid()

    def pieces(self, count: int, size: int, progress: Path | None = None) -> Iterator[Tensor]:
        for number in range(count):
            if progress is not None:
                progress.write_text(str(number))
            yield torch.full((size,), number)

    def broken_pieces(self) -> Iterator[int]:
        yield 1
        raise LookupError("the second piece is missing")


@dataclass(frozen=True)
class AbacusSpec:
    start: int = 0

    def build(self) -> Abacus:
        return Abacus(self.start)


@dataclass(frozen=True)
class BrokenSpec:
    def build(self) -> Abacus:
        raise InputError("the model folder is empty")
