"""Room in a machine's memory for copies that several ranks make at once: all ranks of a machine have one answer."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from lockstep.distributed.ranks import Ranks
from lockstep.system import machine_memory

ROOM = 1.5
"""Free memory that copies need, as a multiple of their size: training must not run out of memory."""


def has_room(needed: int, ranks: Ranks) -> bool:
    """Decides whether a machine has room for what its ranks need; a collective of all ranks of a learner.

    Args:
        needed: Bytes that this rank needs; all together must not take the last of what is free.
        ranks: The ranks.
    """
    own = torch.tensor([_number(machine_memory.name_memory()), needed, machine_memory.free_bytes()])
    every = [own.clone() for _ in range(ranks.count)]
    if ranks.count > 1:
        dist.all_gather(every, own)
    beside = torch.stack([one for one in every if one[0] == own[0]])
    together, free = int(beside[:, 1].sum()), int(beside[:, 2].min())
    return not together or together * ROOM < free


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
