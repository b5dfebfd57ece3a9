"""Copies of a checkpoint: all ranks of a machine make one, or none does, and a control group's limit counts."""

from __future__ import annotations

import pytest
from ranks import Layout, Ranks

from lockstep.distributed.ranks import Ranks as Mesh
from lockstep.learners.room import has_room
from lockstep.system import machine_memory


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
