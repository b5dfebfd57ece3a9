"""Tap on one rank of a learner: values at the cuts of its part of the model, gathered on every
rank.

Letters: N tokens of the row, n of them on this rank; T tokens of the sequence, m of them on this
rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.core.batch import Batch
from lockstep.distributed.ranks import DIMENSIONS, RankMesh
from lockstep.learners.rank import MicroBatches, RankLearner
from lockstep.models.cut import RowShare
from lockstep.models.heads import LogitsHead
from lockstep.models.laid_out import LaidOut, OutputStates
from lockstep_doctor.cuts import OUTPUT, CutPoint, End, PassCapture
from lockstep_doctor.modules import CutShare, CutValues, PassState, count_functions, visit_cuts
from lockstep_doctor.operators import OperatorTrace, Recorder, find_own_part

LOGITS = CutPoint("logits")
LAST = CutPoint("final_norm")
_NOTHING = torch.zeros(0)

_DIVIDED = frozenset(
    {
        "q",
        "k",
        "v",
        "attn",
        "gate",
        "up",
        "act",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "mlp.act_fn",
    }
)
"""Stages whose values tensor parallelism shards by heads or hidden units."""


@dataclass(frozen=True)
class RankShare(CutShare):
    """A rank's share of a value: its tokens, and their heads or hidden units on the rank.

    Attributes:
        ranks: Ranks that together hold the model.
        row: Number of tokens of the row, over all tensor-parallel ranks.
        here: Indices of the sequence's tokens that this rank has, int64 [m].
        place: Their indices in the row, int64 [m].
        count: Number of tokens of the sequence.
    """

    ranks: RankMesh
    row: int
    here: Tensor
    place: Tensor
    count: int

    @classmethod
    def from_row_share(cls, cut: RowShare, first: int, count: int, ranks: RankMesh) -> RankShare:
        """The share of a sequence that starts at token `first` of the batch."""
        if cut.place is None:
            place_N = torch.arange(len(cut.tokens), device=cut.tokens.device)
        else:
            place_N = cut.place
        place_T = place_N[first : first + count]
        here = (place_T >= 0).nonzero().squeeze(-1)
        return cls(ranks, len(cut.tokens), here, place_T[here], count)

    def gather_tokens(self, cut: CutPoint, value: Tensor) -> Tensor | None:
        found = self._gather_row(cut, find_own_part(value))
        if found is None:
            return None
        own_mD = found[self._find_places(len(found))]
        whole_TD = found.new_zeros(self.count, found.shape[1])
        whole_TD[self.here] = own_mD
        if self.ranks.group("cp") is not None:
            dist.all_reduce(whole_TD, group=self.ranks.group("cp"))
        return whole_TD

    def scatter_tokens(self, cut: CutPoint, whole: Tensor, value: Tensor) -> None:
        local = find_own_part(value)
        row = self._gather_row(cut, local)
        assert row is not None, "only what was gathered is scattered"
        row[self._find_places(len(row))] = whole[self.here].to(row)
        tokens = _tokens_of(local)
        index = self.ranks.index("tp")
        if self._is_by_tokens(tokens):
            row = row[index * tokens : (index + 1) * tokens]
        elif self._is_divided(cut):
            row = row.chunk(self.ranks.size("tp"), 1)[index]
        local.copy_(row.reshape(local.shape))

    def _gather_row(self, cut: CutPoint, local: Tensor) -> Tensor | None:
        """The values of the row's tokens [n, D], or of the sequence's [m, D], gathered over
        tensor-parallel ranks.
        """
        tokens = _tokens_of(local)
        flat = local.reshape(tokens, -1).clone()
        if self._is_by_tokens(tokens):
            return torch.cat(gather_parts(self.ranks, flat))
        if not len(self.here) <= tokens <= self.row:
            return None
        if self._is_divided(cut):
            return torch.cat(gather_parts(self.ranks, flat), 1)
        return flat

    def _find_places(self, tokens: int) -> Tensor:
        """Indices of the sequence's tokens in a value; the last layer may compute only these
        tokens.
        """
        if tokens == self.row:
            return self.place
        return torch.arange(len(self.here), device=self.here.device)

    def _is_by_tokens(self, tokens: int) -> bool:
        return self.ranks.size("tp") > 1 and tokens * self.ranks.size("tp") == self.row

    def _is_divided(self, cut: CutPoint) -> bool:
        return self.ranks.size("tp") > 1 and cut.stage in _DIVIDED


def gather_parts(ranks: RankMesh, own: Tensor) -> list[Tensor]:
    """Gathers the parts of all tensor-parallel ranks."""
    group = ranks.group("tp")
    if group is None:
        return [own]
    parts = [torch.empty_like(own) for _ in range(ranks.size("tp"))]
    dist.all_gather(parts, own, group=group)
    return parts


def _tokens_of(value: Tensor) -> int:
    """The size of the first dimension above 1, since a row has no batch dimension."""
    return next((size for size in value.shape if size > 1), 1)


class RankTap:
    """Implements `lockstep_doctor.Tap` for one rank of a learner.

    Its methods are collectives over all ranks. Only the first rank of a pipeline stage returns
    values: the values at the stage's cuts.

    Args:
        learner: The rank.
        paths: Modules of the learner's model at which cuts lie.
        values: Maps a module's input or output to its cuts; includes `OUTPUT` only if the model
            computes logits.
        head: Gathers the weight of the vocabulary head [V, D], if the model computes no logits.
        hidden: Cuts that the model does not have, because a fused operator skips them.
        name: Name of the engine in reports.
        neighbors: Number of other sequences in the row before the one that is read.
    """

    def __init__(
        self,
        learner: RankLearner,
        paths: Sequence[str],
        values: CutValues,
        head: Callable[[], Tensor],
        hidden: frozenset[CutPoint],
        name: str,
        neighbors: int = 0,
    ) -> None:
        self._learner = learner
        self._ranks = learner._ranks
        self._paths = paths
        self._values = values
        self._head = head
        self._hidden = hidden
        self.name = name
        self._neighbors = neighbors
        self._own: frozenset[CutPoint] = frozenset()

    @property
    def leads_stage(self) -> bool:
        """True for the first rank of a stage."""
        return not any(self._ranks.index(name) for name in DIMENSIONS if name != "pp")

    @property
    def model(self) -> nn.Module:
        """The model, without Lockstep's head if it has one, so that module names match
        `transformers`.
        """
        own = self._learner.model
        if isinstance(own, LogitsHead):
            return own.lm
        return own

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        logits, column, seen = self._read_sequence(tokens_T, forced)
        if not self.leads_stage:
            return PassCapture(_NOTHING, {})
        here = {cut: value.cpu() for cut, value in seen.items()}
        return PassCapture(_NOTHING if logits is None else logits.cpu(), here, column, self._hidden)

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        """Returns operators of this stage if it has one of the two cuts; other stages return the
        rest of the segment.
        """
        with Recorder() as recorder:
            self._read_sequence(
                tokens_T, forced, recorder, start if start in self._own else None, end
            )
        if {start, end} & self._own:
            return recorder.join_calls()
        return OperatorTrace()

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        with count_functions() as ran:
            self._read_sequence(tokens_T, {})
        if self.leads_stage:
            return ran
        return Counter()

    def _read_sequence(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        recorder: Recorder | None = None,
        start: CutPoint | None = None,
        end: CutPoint | None = None,
    ) -> tuple[Tensor | None, Tensor | None, dict[CutPoint, Tensor]]:
        """Returns logits [T, V] and the learner's log-probabilities [T − 1] (on the last stage
        only), and values by cut.
        """
        # the sequence comes after its neighbors, parts of the reversed sequence
        others = [tokens_T.flip(0)[: len(tokens_T) - number] for number in range(self._neighbors)]
        tokens = torch.cat([*others, tokens_T])
        lengths = torch.tensor(list(map(len, (*others, tokens_T))))
        mask = torch.ones_like(tokens, dtype=torch.bool)
        batch = Batch(tokens, lengths, {"mask": mask}, entropy=False)
        cut = self._lay_out(batch).cut.map_tensors(lambda x: x.to(self._learner.device))
        first = int(batch.starts[-1])
        share = RankShare.from_row_share(cut, first, len(tokens_T), self._ranks)
        if end in (LOGITS, OUTPUT) and OUTPUT not in self._own:
            inside = None
        else:
            inside = recorder
        one = PassState(forced, inside, start, end, share)
        kept = dict[CutPoint, Tensor]()

        def keep_values(path: str, at: End, value: Any) -> Iterator[tuple[CutPoint, Tensor]]:
            for point, x in self._values(path, at, value):
                kept[point] = x if point in (LAST, OUTPUT) else _NOTHING
                yield point, x

        micros = MicroBatches(batch, [list(range(len(batch)))], self._lay_out, self._learner.device)
        with torch.no_grad(), visit_cuts(self._learner.model, self._paths, keep_values, one):
            if inside is not None:
                inside.begin_early()
            outputs = list(self._learner._compute_outputs(micros))
        self._own, seen, logits = frozenset(kept), one.collect_values(), None
        if OUTPUT in kept:
            logits = share.gather_tokens(OUTPUT, kept[OUTPUT])
        elif LAST in kept and (hidden_TD := share.gather_tokens(LAST, kept[LAST])) is not None:
            behind = PassState(forced, recorder, start, end)
            logits = self._compute_logits(hidden_TD, behind)
            seen = behind.collect_values() | seen
            self._own |= {LOGITS}
        if not outputs or outputs[0].logprob is None:
            column = None
        else:
            column = outputs[0].logprob[first + 1 :].cpu()
        return logits, column, seen

    @torch.no_grad()
    def _compute_logits(self, hidden_TD: Tensor, one: PassState) -> Tensor:
        """Computes logits [T, V] from the last hidden states, for a model that never computes whole
        logits.
        """
        weight_VD = self._head()
        with self._learner._open_autocast():
            one.visit_cut(LAST, hidden_TD)
            logits_TV = F.linear(hidden_TD, weight_VD)
        one.visit_cut(LOGITS, logits_TV)
        one.visit_cut(OUTPUT, logits_TV)
        return logits_TV

    def _lay_out(self, batch: Batch) -> LaidOut:
        """Lays out a batch so that all states of its last sequence are read; the output of the last
        state is not used.
        """
        laid = self._learner._lay_out(batch)
        first = int(batch.starts[-1])
        count = int(batch.lengths[-1])
        state_T = torch.arange(first, first + count)
        return replace(laid, read=OutputStates.from_share(laid.cut, state_T, state_T.roll(-1)))
