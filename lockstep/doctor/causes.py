"""The causes that the doctor knows by name, and what to do about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockstep.doctor.base import Side

Confidence = Literal["confirmed", "consistent"]
"""The counter-setting removes the gap · the fingerprint fits, and no counter-setting could be tried."""


@dataclass(frozen=True)
class Cause:
    """A cause.

    Attributes:
        what: Happens, in one line.
        cure: What to do, in one line.
    """

    what: str
    cure: str


@dataclass(frozen=True)
class Named:
    """A cause that was found.

    Attributes:
        cause: Its name in `CAUSES`.
        side: Which side is wrong; None where that cannot be told, or both are.
        confidence: How sure that is.
        share: Of the gap (of its variance) that the counter-setting takes away.
        evidence: What was seen, one line each.
        counter: The setting that was tried.
    """

    cause: str
    side: Side | None
    confidence: Confidence
    share: float
    evidence: tuple[str, ...]
    counter: str

    @property
    def cure(self) -> str:
        """What to do."""
        return CAUSES[self.cause].cure


CAUSES: dict[str, Cause] = {
    "retokenised": Cause(
        "the text went through the tokenizer again, and other ids came out",
        "hand token ids from sampler to trainer, never text",
    ),
    "off_by_one": Cause(
        "log-probabilities are read one position off",
        "score token t with the logits at t − 1, and shift only once",
    ),
    "first_token": Cause(
        "only the first generated token is scored otherwise",
        "look at what stands between prompt and response: BOS, the template's last newline, the first decoding step",
    ),
    "temperature": Cause(
        "the two sides divide the logits by different temperatures",
        "let both score under the sampled distribution: processed log-probabilities, temperature in the trainer",
    ),
    "top_p": Cause(
        "one side renormalises over the nucleus, the other does not",
        "give the trainer the sampler's top_p, or sample with top_p = 1",
    ),
    "top_k": Cause(
        "one side draws from the likeliest tokens only",
        "give the trainer the sampler's top_k, or sample with top_k = 0; look for one in generation_config.json",
    ),
    "penalty": Cause(
        "the sampler changes the logits of some tokens: of those that were there before, or of the same ones always",
        "set penalties, logit_bias and bad words to their neutral values; look into generation_config.json",
    ),
    "softmax_precision": Cause(
        "the log-softmax is computed in a low precision",
        "cast the logits to fp32 before the log-softmax",
    ),
    "padded_vocabulary": Cause(
        "rows that only pad the vocabulary count in the denominator",
        "cut the logits to the tokenizer's vocabulary, or set those of padding rows to minus infinity",
    ),
    "softcap": Cause("one side does not cap the logits", "switch the model's logit soft-capping on, on both sides"),
    "head_precision": Cause(
        "the two sides compute logits in different precision",
        "compute the head in fp32 on both sides, or on neither",
    ),
    "dtype": Cause("the two sides compute in different types", "let both compute in the same type"),
    "rope": Cause("the rotary embedding differs", "compare rope_theta, rope scaling and how halves are interleaved"),
    "sliding_window": Cause(
        "one side attends through a sliding window, the other does not, or through another",
        "set sliding_window, use_sliding_window and max_window_layers to the same on both sides",
    ),
    "bias": Cause("a projection's bias is missing", "load the bias, and let the layer have one"),
    "norm_eps": Cause("norms have different epsilons", "set rms_norm_eps (layer_norm_eps) to the same"),
    "activation": Cause("the feed-forward's activation differs", "set hidden_act to the same on both sides"),
    "attention": Cause(
        "attention gives other outputs for the same queries, keys and values", "compare masks, scaling and kernels"
    ),
    "embedding": Cause("the embedding gives other states", "compare its rows, and the factor that scales them"),
    "stale_tensor": Cause(
        "some weights are not those of the trainer", "send them again, and attest what the engine holds after a refit"
    ),
    "swapped_tensors": Cause(
        "two tensors hold each other's weights", "mend the name map; gate and up projections are the usual pair"
    ),
    "permuted_tensor": Cause(
        "a tensor has the right numbers in the wrong order", "mend the conversion: order of heads, or a transpose"
    ),
    "tied_head": Cause(
        "the head no longer follows the embedding that it is tied to",
        "send the head too, or tie it again after loading",
    ),
    "missed_buffer": Cause(
        "a buffer was not sent with the weights", "stream buffers too, those never saved among them"
    ),
    "quantised_weights": Cause(
        "weights are held in fewer bits than the trainer's", "load them unquantised, or train with the same quantiser"
    ),
    "kv_precision": Cause(
        "keys and values are kept in a lower precision than they are computed in",
        "keep the cache in the model's type (kv_cache_dtype=auto)",
    ),
    "stale_prefix_cache": Cause(
        "cached keys and values of older weights are still used",
        "drop the prefix cache at each refit",
    ),
    "chunked_state": Cause(
        "state is lost where a long prompt is cut into chunks", "switch chunked prefill off, or mend its state"
    ),
    "decode_kernel": Cause(
        "decoding token by token gives other numbers than reading all at once",
        "try another attention kernel for decoding, and no graph capture",
    ),
    "left_padding": Cause(
        "padding is attended to, or shifts positions",
        "hand the attention mask to the model, and positions that start behind the padding",
    ),
    "packed_positions": Cause(
        "positions do not begin anew with each packed sequence", "hand position_ids that begin at 0 for each sequence"
    ),
    "packed_leak": Cause(
        "packed sequences see their neighbours", "use a block-diagonal mask, or variable-length attention"
    ),
    "batch_variance": Cause(
        "numbers depend on what else is in the batch",
        "use batch-invariant kernels, or the same batch sizes on both sides",
    ),
    "nondeterminism": Cause("the same request gives other numbers", "use deterministic kernels"),
    "dropout": Cause("the trainer drops out while it scores", "put the model into evaluation mode"),
    "kernel": Cause("the attention kernel makes the difference", "use the same attention kernel, or a more exact one"),
    "parallel_reduction": Cause(
        "sums over ranks are rounded otherwise than on one", "reduce in fp32, or use the same number of ranks"
    ),
    "routing": Cause(
        "the router sends tokens to other experts",
        "compute the router in fp32 on both sides, or replay the sampler's experts and their weights",
    ),
}
