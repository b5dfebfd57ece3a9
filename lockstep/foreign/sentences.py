"""Sentences that several tables share: why some keys of other libraries are no options here."""

from __future__ import annotations

PACKED = "sequences are packed to learner.micro_batch_tokens and losses are divided once, so rows per pass do not exist"
NO_PADDING = "there is no padding: sequences are always packed"
ESTIMATOR = "the placement decides the estimator: k1 in the reward, k2 · π/π_old in the loss"
GRADIENTS = {
    ("loss", "k1"): "k1 in the loss has an expected gradient of 0 there; here the loss has that of KL(π ‖ π_ref)",
    ("loss", "k3"): "k3 in the loss has the gradient of KL(π_ref ‖ π) there; here the loss has that of KL(π ‖ π_ref)",
    ("reward", "k2"): "k2 in the reward has another gradient there than KL(π ‖ π_ref), which k1 here has",
    ("reward", "k3"): "k3 in the reward has another gradient there than KL(π ‖ π_ref), which k1 here has",
}
"""Differences of what is trained, by where a KL is and by its estimator."""
ONE_KL = "the KL is in the loss or in the reward, never in both"
SHARE = "sampler.kv_cache_gib counts GiB, and this is a share of a GPU's memory"
OFFLINE = "only what a name says that begins with hf: is downloaded, and nothing is pushed"
RESUME = "the same command resumes, bit for bit, with nothing to set"
STEP_ZERO = "step 0 is validated wherever there is validation"
EVERY_STEP = "every step is logged"
SCORED_AS_SAMPLED = "the learner scores under the distribution that was sampled from"
EAGER = "the kernels are chosen by the model's family and the device"
SHUFFLED = "rows are shuffled by the key of the run (data.shuffle), and minibatches in the order of the step"
DROPOUT = "no model is trained with dropout"
ENGINE = "an engine's own option: sampler.vllm.engine_args takes what vLLM calls it"
ADAMW = "the optimizer is AdamW"
IMAGES = "models of text alone"
EXPERTS = "there is no expert parallelism"
OFFLOAD = "where models take turns, cluster.offload_idle moves the idle ones"
WHOLE_STATE = "a checkpoint holds everything that the next step depends on, as safetensors"
HARDWARE = "an option of their machinery"
