"""Copies of a checkpoint: all ranks of a machine make one, or none does, and a control group's limit counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Layout, Ranks

from lockstep import machine_memory
from lockstep.distributed.ranks import Ranks as Mesh
from lockstep.learners.room import has_room


def ask(layout: Layout, machines: list[str], needed: list[int], free: list[int]) -> bool:
    """The answer of a rank that is on the named machine."""
    sizes = {"dp_replicate": 1, "dp": layout.tp, "pp": 1, "cp": 1, "tp": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_memory, "name_memory", lambda: machines[layout.rank])
        patch.setattr(machine_memory, "free_bytes", lambda: free[layout.rank])
        return has_room(needed[layout.rank], Mesh.of("cpu", sizes))


@pytest.mark.parametrize(
    ("machines", "needed", "free", "answers"),
    [
        ("aaaa", [60] * 4, [100] * 4, [False] * 4),
        ("aaaa", [60] * 4, [400, 361, 390, 400], [True] * 4),
        ("aaaa", [60] * 4, [400, 359, 390, 400], [False] * 4),
        ("aabb", [60, 60, 60, 0], [181, 190, 91, 91], [True] * 4),
        ("abab", [60, 60, 60, 0], [179, 91, 400, 91], [False, True, False, True]),
    ],
)
def test_ranks_of_a_machine_share_its_memory(
    ranks: Ranks, machines: str, needed: list[int], free: list[int], answers: list[bool]
) -> None:
    assert ranks.run(ask, list(machines), needed, free, tp=4) == answers


GROUPS = {
    "the second version": ("0::/a/b\n", "memory.max", "memory.current", "inactive_file", ""),
    "the first version": (
        "4:memory:/a/b\n1:cpu:/\n",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "memory",
    ),
}


@pytest.mark.parametrize("version", GROUPS)
def test_a_control_groups_limit_is_the_memory_that_there_is(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, most, used, cached, root = GROUPS[version]
    (tmp_path / "own").write_text(said)
    monkeypatch.setattr(machine_memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine_memory, "_GROUPS", tmp_path)
    whole = machine_memory.total_bytes()
    assert machine_memory.free_bytes() > 2 << 20
    inner, outer = tmp_path / root / "a/b", tmp_path / root / "a"
    inner.mkdir(parents=True)
    (inner / most).write_text("max\n" if most == "memory.max" else "9223372036854771712\n")
    (inner / used).write_text("5000\n")
    alone = machine_memory.name_memory()
    assert machine_memory.total_bytes() == whole
    (outer / most).write_text(f"{1 << 20}\n")
    (outer / used).write_text("300000\n")
    (outer / "memory.stat").write_text(f"cache 9\n{cached} 100000\n")
    assert machine_memory.total_bytes() == 1 << 20
    assert machine_memory.free_bytes() == (1 << 20) - 200_000
    assert machine_memory.name_memory() != alone, "another container of this machine has memory of its own"
