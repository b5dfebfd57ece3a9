"""Part 4: agreement of every backend with every other, in fp32 and bf16; what exactness removes;
planted faults.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mission.agreement_page import describe, draw
from benchmarks.mission.programs import Program, run_all

__all__ = ["TITLE", "describe", "draw", "measure"]

TITLE = "Agreement: backends beside each other, exactness on and off, planted faults"

BUDGET_S = 900
"""Seconds after which a table begins no cell; on two quiet cores none is left out."""
BACKENDS = {
    "fp32": ("hf", "torch", "torch-tp3", "vllm", "megatron"),
    "bf16": ("hf", "torch", "torch-tp3", "vllm"),
}
"""Megatron computes bf16 on GPUs alone.

The model has 3 heads of keys, so tensor parallelism has 3 ranks.
"""
_TWO_METHODS = "[{temperature: 0.0}, {temperature: 1.0}]"
_SAMPLED = "[{temperature: 1.0}]"


@dataclass(frozen=True)
class Table:
    """A table of the doctor.

    Attributes:
        name: Of its folder.
        title: Of its rows on the page.
        dtype: Of all backends.
        backends: Which are compared.
        grid: Options of its cells.
        long: True if it is measured by `make mission-long` alone.
    """

    name: str
    title: str
    dtype: str
    backends: tuple[str, ...]
    grid: tuple[str, ...]
    long: bool = False

    @property
    def command(self) -> str:
        """What measures it, among others."""
        return "make mission-long" if self.long else "python -m benchmarks.mission agreement"

    def program(self, model: Path) -> Program:
        """The command that measures it, and goes on with one that was stopped."""
        options = [f"backends=[{','.join(self.backends)}]", f"learner.dtype={self.dtype}"]
        options += [f"grid.{option}" for option in self.grid]
        options.append(f"grid.budget_s={'null' if self.long else BUDGET_S}")
        command = ("lockstep", "doctor", "table", str(model), *options, f"run.folder={self.name}")
        return Program(self.name, command, codes=(0, 3, 4))


def _short(dtype: str, data: str, methods: str) -> Table:
    """Short responses by every drawer, and long ones by vLLM alone, of which two are scored.

    Together they are the 4,603 tokens that bound rare outliers.
    """
    cells = ("lengths=[100,1000]", f"data=[{data}]", f"methods={methods}", "batch_sizes=[8]")
    return Table(
        dtype,
        dtype,
        dtype,
        BACKENDS[dtype],
        (*cells, "sequences=8", "max_tokens=2000", "repeats=3"),
    )


def _batches(dtype: str) -> Table:
    """Batches of 1 and 32 of two backends that both draw; of 32 responses 16 are scored."""
    cells = ("lengths=[100]", "data=[real]", f"methods={_SAMPLED}", "batch_sizes=[1,32]")
    options = (*cells, "sequences=8", "max_tokens=1600", "repeats=3")
    return Table(f"{dtype}_batches", f"{dtype}, other batches", dtype, ("torch", "vllm"), options)


def _whole(dtype: str) -> Table:
    """The whole grid."""
    cells = (
        "lengths=[100,1000]",
        "data=[real,counting]",
        f"methods={_TWO_METHODS}",
        "batch_sizes=[1,8,32]",
    )
    options = (*cells, "sequences=16", "max_tokens=8000", "repeats=10")
    return Table(
        f"{dtype}_whole", f"{dtype}, whole grid", dtype, BACKENDS[dtype], options, long=True
    )


def _deep(dtype: str) -> Table:
    """One cell of two responses of 8,000 tokens, of which the last 1,000 are decoded."""
    cells = ("lengths=[8000]", "data=[real]", f"methods={_SAMPLED}", "batch_sizes=[2]")
    options = (*cells, "sequences=2", "max_tokens=16000", "repeats=1")
    return Table(
        f"{dtype}_8000", f"{dtype}, 8,000 tokens", dtype, BACKENDS[dtype], options, long=True
    )


TABLES = (
    _short("fp32", "real,counting", _SAMPLED),
    _short("bf16", "real", _TWO_METHODS),
    _batches("bf16"),
    *(make(dtype) for make in (_whole, _deep) for dtype in BACKENDS),
)
ENGINES = ("torch_sampler", "vllm", "torch", "megatron")
"""Those that a fault is planted in: two that sample, two that learn."""
DEPTHS = {"depth_exact": "true", "depth_usual": "false"}
ROWS = 1
TOKENS = 1024
"""Responses whose gaps are shown by depth, and tokens of each; 2,048 tokens showed the same gap at
every depth.
"""


def measure(model: Path, work: Path, jobs: int, long: bool = False) -> dict[str, Any]:
    """Runs all programs, or those that are missing; `long` adds those of `make mission-long`.

    Returns all figures.
    """
    run_all(list_programs(model, long), work, jobs)
    return collect(work)


def list_programs(model: Path, long: bool) -> list[Program]:
    """All programs of the part, in the order in which they are started."""
    tables = [table.program(model) for table in TABLES if long or not table.long]
    depths = [_measure_depth(name, model) for name in DEPTHS]
    return [_certify(model), *tables, *depths, *(_plant(engine, model) for engine in ENGINES)]


def collect(work: Path) -> dict[str, Any]:
    """The figures of all programs; a table that was not measured is named."""
    measured = [table for table in TABLES if (work / table.name / "report.json").is_file()]
    return {
        "tables": {
            table.name: {"title": table.title, **read_table(work / table.name)}
            for table in measured
        },
        "not_measured": {table.title: table.command for table in TABLES if table not in measured},
        "certificate": _read(work / "certificate.json"),
        "depth": {name: _read(work / f"{name}.json") for name in DEPTHS},
        "planted": [_read(work / f"planted_{engine}.json") for engine in ENGINES],
    }


def _certify(model: Path) -> Program:
    arguments = ("--count", "8", "--max-tokens", "24", "--out", "certificate.json")
    return Program("certify", ("lockstep", "certify", str(model), *arguments), codes=(0, 3, 4))


def _measure_depth(name: str, model: Path) -> Program:
    sizes = ("--rows", str(ROWS), "--tokens", str(TOKENS), "--out", f"{name}.json")
    return Program(name, ("benchmarks.mission.depth", str(model), "--exact", DEPTHS[name], *sizes))


def _plant(engine: str, model: Path) -> Program:
    out = f"planted_{engine}.json"
    return Program(
        f"planted_{engine}", ("benchmarks.mission.planted", engine, str(model), "--out", out)
    )


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def read_table(folder: Path) -> dict[str, Any]:
    """The figures of a table's report: by cell what it is and how pairs are judged, by pair the
    gaps of all cells.
    """
    report = _read(folder / "report.json")
    cells = [cell for cell in report["cells"] if cell["state"] == "measured"]
    return {
        "dtype": report["recipe"]["learner"]["dtype"],
        "verdict": report["verdict"],
        "seconds": report["seconds"],
        "budget_s": report["recipe"]["grid"]["budget_s"],
        "refused": report["refused"],
        "cells": [_read_cell(cell) for cell in report["cells"]],
        "pairs": [_read_pair(pair, cells) for pair in report["pairs"]],
        "repeats": _count_repeats(report["repeats"]),
    }


def _read_cell(cell: dict[str, Any]) -> dict[str, Any]:
    pairs = cell.get("pairs", [])
    return {
        "length": cell["length"],
        "data": cell["data"],
        "method": cell["method"]["name"],
        "batch": cell["batch_size"],
        "state": cell["state"],
        "scored": cell.get("sequences", 0),
        "verdicts": dict(Counter(pair["verdict"] for pair in pairs)),
        "reasons": [_name_reason(pair) for pair in pairs if pair["reasons"]],
    }


def _name_reason(pair: dict[str, Any]) -> str:
    """The first reason of a verdict; which pair failed is told, too."""
    named = f"{pair['train']} vs {pair['infer']}, " if pair["verdict"] == "FAIL" else ""
    return f"{named}{pair['verdict']}: {pair['reasons'][0]}"


def _read_pair(pair: list[str], cells: list[dict[str, Any]]) -> dict[str, Any]:
    """A pair's gaps over the tokens that each side drew, and how often it got which verdict."""
    own = [one for cell in cells for one in cell["pairs"] if [one["train"], one["infer"]] == pair]
    sides = {
        side: [one["drawn"][side]["figures"] for one in own if side in one["drawn"]]
        for side in ("infer", "train")
    }
    return {
        "pair": pair,
        "verdicts": dict(Counter(one["verdict"] for one in own)),
        "drawn": {side: _sum_figures(figures) for side, figures in sides.items() if figures},
    }


def _sum_figures(figures: list[dict[str, float]]) -> dict[str, float]:
    tokens = sum(one["tokens"] for one in figures)
    return {
        "tokens": tokens,
        "largest": max(one["max_abs"] for one in figures),
        "mean": sum(one["mean_abs"] * one["tokens"] for one in figures) / tokens,
    }


def _count_repeats(repeats: list[dict[str, Any]]) -> dict[str, list[int]]:
    """By backend how often the same was asked, and how often every bit was the same."""
    found = dict[str, list[int]]()
    for one in repeats:
        times, bitwise = found.get(one["backend"], [0, 0])
        found[one["backend"]] = [times + one["times"], bitwise + one["bitwise"]]
    return found
