"""Healthy pairs of sides: every cause that the doctor names here is a false alarm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.doctor_faults.fault import PLAINLY, Case, Change, Setup, built
from benchmarks.doctor_faults.model_ground import Ground
from benchmarks.doctor_faults.sides import HFSide


class Eager(HFSide):
    """With the plain attention kernel."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._usual = replace(self._usual, kernel="eager")


@dataclass(frozen=True)
class Control:
    """A healthy configuration.

    Attributes:
        name: Of it, unique.
        setup: See there.
        changes: What is legitimately otherwise on one side.
    """

    name: str
    setup: Setup
    changes: tuple[Change, ...] = ()

    def build(self, ground: Ground) -> Case:
        """Its two sides."""
        return built(ground, self.setup, self.changes)


CONTROLS = (
    Control("fp32", Setup()),
    Control("bf16", Setup(dtype="bf16")),
    Control("bf16, torch and torch", Setup(train="torch", dtype="bf16")),
    Control("bf16, hf and hf eager", Setup(infer="hf", dtype="bf16"), (Change("infer", Eager),)),
    Control("fp16, hf and hf eager", Setup(infer="hf", dtype="fp16"), (Change("infer", Eager),)),
    Control("fp32 at temperature 0.7", Setup(sampling=replace(PLAINLY, temperature=0.7))),
    Control("bf16 at top_p 0.9", Setup(dtype="bf16", sampling=replace(PLAINLY, top_p=0.9))),
    Control("bf16, greedy", Setup(dtype="bf16", sampling=replace(PLAINLY, temperature=0.0))),
    Control("bf16 at batch 32", Setup(dtype="bf16", batch_size=32)),
    Control("fp32 one by one", Setup(batch_size=1)),
    Control("qwen2 in bf16", Setup(model="qwen2", dtype="bf16")),
    Control(
        "qwen3 in bf16 at temperature 1.3", Setup("qwen3", dtype="bf16", sampling=replace(PLAINLY, temperature=1.3))
    ),
    Control("gemma2 in fp32 at top_k 20", Setup(model="gemma2", sampling=replace(PLAINLY, top_k=20))),
    Control("window in bf16", Setup(model="window", dtype="bf16")),
    Control("mixtral in fp32", Setup(model="mixtral")),
    Control("mamba2 in fp32, hf and hf", Setup(model="mamba2", infer="hf")),
)


def healthy_runs(count: int) -> Iterator[tuple[Control, int]]:
    """Configurations in turn, each round with another seed of weights and prompts."""
    for run in range(count):
        yield CONTROLS[run % len(CONTROLS)], run // len(CONTROLS)
