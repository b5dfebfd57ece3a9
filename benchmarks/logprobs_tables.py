"""The tables that `benchmarks.logprobs` prints."""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.logprobs_kernels import KERNELS
from benchmarks.logprobs_measure import Figures

MIB = 2**20
ByWay = dict[str, Figures]


def time_table(figures: dict[str, ByWay], speed: float) -> str:
    """CPU milliseconds forward / backward, and how many times less Lockstep takes in all."""
    head = ["CPU ms, forward / backward", "Lockstep", "naive", "reference", "naive ÷ Lockstep", "reference ÷ Lockstep"]
    rows = []
    for kernel in KERNELS:
        if kernel.name in figures:
            ours, naive, reference = figures[kernel.name]["Lockstep"], figures[kernel.name]["naive"], kernel.reference
            less = f"{naive.seconds / ours.seconds:.1f}×"
            if reference is None:
                rows.append([kernel.name, _ms(ours), _ms(naive), "–", less, "–"])
            else:
                wall = "" if reference.clock == "CPU" else f" ({reference.clock})"
                told = f"{_number(reference.forward_ms)} / {_number(reference.backward_ms)}{wall}"
                ratio = f"{reference.seconds * speed / ours.seconds:.1f}×{wall}"
                rows.append([kernel.name, _ms(ours), _ms(naive), told, less, ratio])
    return markdown(head, rows)


def memory_table(figures: dict[str, ByWay]) -> str:
    """Peaks above the inputs, and collectives, forward / backward."""
    head = ["MiB, forward / in all", "Lockstep", "naive", "reference", "naive ÷ Lockstep", "reference ÷ Lockstep"]
    head += ["÷ gradients", "collectives", "naive", "reference", "waits for the device"]
    rows = []
    for kernel in KERNELS:
        if kernel.name in figures:
            ours, naive, reference = figures[kernel.name]["Lockstep"], figures[kernel.name]["naive"], kernel.reference
            cells = [kernel.name, _mib(ours), _mib(naive)]
            cells.append(f"{reference.forward_mib:g} / {reference.total_mib:g}" if reference else "–")
            cells.append(f"{naive.total_bytes / ours.total_bytes:.1f}×")
            cells.append(f"{reference.total_mib * MIB / ours.total_bytes:.1f}×" if reference else "–")
            cells.append(f"{ours.total_bytes / ours.gradient_bytes:.2f}" if ours.gradient_bytes else "–")
            cells += [_collectives(ours), _collectives(naive), reference.collectives if reference else "–"]
            rows.append([*cells, str(ours.counts.waits)])
    return markdown(head, rows)


def peer_table(figures: dict[str, ByWay]) -> str:
    """Lockstep beside NeMo RL's functions in the same run: CPU time, and the peak above the inputs."""
    peers = ("NeMo RL", "NeMo RL, chunked")
    head = ["CPU ms; MiB at the peak", "Lockstep", *peers, *(f"{peer} ÷ Lockstep" for peer in peers)]
    rows = []
    for kernel, ways in figures.items():
        ours, theirs = ways["Lockstep"], [ways.get(peer) for peer in peers]
        if any(theirs):
            cells = ["–" if own is None else f"{_ms(own)}; {_mib(own)}" for own in (ours, *theirs)]
            cells += ["–" if own is None else _times(own, ours) for own in theirs]
            rows.append([kernel, *cells])
    return markdown(head, rows)


def _times(theirs: Figures, ours: Figures) -> str:
    return f"{theirs.seconds / ours.seconds:.1f}×; {theirs.total_bytes / max(ours.total_bytes, 1):.1f}×"


def products_table(figures: dict[str, ByWay]) -> str:
    """CPU time beside that of the matrix products alone, for the kernels that make any."""
    head = [
        "CPU ms",
        "in all",
        "its 4 matrix products alone",
        "ratio",
        "3 products, logits kept",
        "ratio",
        "MiB at the peak",
    ]
    rows = []
    for kernel, ways in figures.items():
        if "products" in ways:
            four_s = ways["products"].seconds
            three_s = four_s - ways["products"].forward_s
            for way in ways.keys() - {"products"}:
                own = ways[way]
                cells = [f"{kernel}: {way}", f"{own.seconds * 1e3:.0f}", f"{four_s * 1e3:.0f}"]
                cells += [f"{own.seconds / four_s:.2f}", f"{three_s * 1e3:.0f}", f"{own.seconds / three_s:.2f}"]
                rows.append([*cells, f"{own.total_bytes / MIB:.0f}"])
    return markdown(head, sorted(rows))


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table; all but its first column to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _ms(figures: Figures) -> str:
    return f"{figures.forward_s * 1e3:.0f} / {figures.backward_s * 1e3:.0f}"


def _mib(figures: Figures) -> str:
    return f"{figures.forward_bytes / MIB:.0f} / {figures.total_bytes / MIB:.0f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _collectives(figures: Figures) -> str:
    ways = (figures.counts.forward, figures.counts.backward)
    return " / ".join("+".join(f"{count} {name}" for name, count in way.items()) or "0" for way in ways)


def harness_rows(figures: dict[str, ByWay]) -> list[Row]:
    """Rows of Lockstep beside naive autograd."""
    rows = []
    for kernel, ways in figures.items():
        ours, naive = ways["Lockstep"], ways["naive"]
        rows.append(Row(f"{kernel}, CPU s", naive.seconds, ours.seconds, naive.seconds / ours.seconds))
        theirs, own = naive.total_bytes / MIB, ours.total_bytes / MIB
        rows.append(Row(f"{kernel}, MiB at the peak", theirs, own, theirs / own))
    return rows
