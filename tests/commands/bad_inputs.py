"""The catalogue of bad inputs: how each is made.

What is said of it stands in messages.md under the same name.

The commands are given in a folder of `workspace.furnish`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hub_server import HubServer
from workspace import (
    Spoil,
    adapters_only,
    add_row,
    change,
    in_eight_bits,
    pickled,
    remove,
    small_embedding,
    truncated,
    with_nan,
    without_tensor,
    write,
)

from lockstep.core import exit_codes


@dataclass(frozen=True)
class BadInput:
    """One thing that is wrong.

    Attributes:
        command: Arguments of `lockstep`.
        spoil: Makes it wrong, where the command alone does not.
        early: Whether it shows before the first step, so that nothing is left behind.
        dry: Whether `--dry-run` says the same.
        code: What the command exits with.
        hub: Fills a hub that the command asks, and the cache, where it is about names of a hub.
    """

    command: str
    spoil: Spoil | None = None
    early: bool = True
    dry: bool = True
    code: int = exit_codes.INPUT
    hub: Callable[[HubServer, Path], object] | None = None

    @property
    def late(self) -> BadInput:
        """The same, for what only the first steps can show."""
        return replace(self, early=False, dry=False)

    @property
    def lost(self) -> BadInput:
        """The same, for what ends a run that was in order."""
        return replace(self.late, code=exit_codes.CRASH)


def said(overrides: str) -> BadInput:
    """Of `lockstep train tiny.yaml`, with overrides."""
    return BadInput(f"train tiny.yaml {overrides}")


def own(spoil: Spoil | None = None, overrides: str = "") -> BadInput:
    """Of `lockstep train own.yaml`, which reads a model and rows from the folder."""
    return BadInput(f"train own.yaml {overrides}", spoil)


def judged(overrides: str, spoil: Spoil | None = None) -> BadInput:
    """Of `lockstep train judged.yaml`, in which a model rewards itself."""
    return BadInput(f"train judged.yaml {overrides}", spoil)


ABACUS = {"AutoConfig": "abacus.Abacus", "AutoModelForCausalLM": "abacus.AbacusForCausalLM"}


def code_of_its_own(folder: Path) -> None:
    change("model/config.json", model_type="abacus", auto_map=ABACUS)(folder)
    (folder / "model/abacus.py").write_text("raise RuntimeError")


def known_with_code(folder: Path) -> None:
    change(
        "model/config.json", auto_map={"AutoConfig": "x.Config", "AutoModelForCausalLM": "x.Model"}
    )(folder)
    # no other file's content: this one stays trusted
    (folder / "model/x.py").write_text("raise KeyError")


def a_run(folder: Path) -> None:
    """A run that has just begun."""
    (folder / "run").mkdir()
    write("run/recipe.yaml", (folder / "own.yaml").read_bytes())(folder)


def a_checkpoint(folder: Path) -> None:
    a_run(folder)
    (folder / "run/checkpoints/step_000020").mkdir(parents=True)


def reward(function: str, *overrides: str) -> BadInput:
    """Of a reward function in rewards.py."""
    kind = ["reward.type=python", f"reward.function={function}", "reward.marker=null"]
    return said(" ".join([*kind, *overrides]))


def rewarded(fields: str, overrides: str) -> BadInput:
    """Of the only row, with fields besides question and answer, for a reward that is not math
    alone.
    """
    return own(write("rows.jsonl", f'{{"question": "a", "answer": "1", {fields}}}\n'), overrides)


def played(name: str, *overrides: str) -> BadInput:
    """Of an environment in worlds.py."""
    return said(
        " ".join([f"environment.class_name=worlds.py:{name} environment.max_tokens=24", *overrides])
    )


FOLLOWED = "reward={type: instructions, marker: null, instructions: {field: asked}}"
TESTED = "reward={type: code, marker: null, code: {tests: tests}}"
BY_ROW = "reward={type: by_row, verifier: kind, code: {tests: tests}}"
SERVED = (
    "reward={type: server, marker: null, server: {url: http://127.0.0.1:9/score, max_retries: 0}}"
)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '0'}\nsize 4\n"
TINY = "base: tiny.yaml\n"
WITHOUT_A_LENGTH = """
algorithm: sft
model: {path: model}
data: {train: rows.jsonl, max_prompt_tokens: 9}
sft: {global_batch_size: 1}
optimizer: {lr: 1}
run: {}
"""

RECIPES = {
    "recipe: name with a typo": BadInput("train ppo_arithmetc"),
    "recipe: name in capitals": BadInput("train GRPO"),
    "recipe: no such file": BadInput("train absent.yaml"),
    "recipe: no YAML": BadInput("train bad.yaml", write("bad.yaml", "seed: 1\nppo: {clip: 0.1\n")),
    "recipe: a list of rows": BadInput("train bad.yaml", write("bad.yaml", "- question: a\n")),
    "recipe: a key twice": BadInput("train bad.yaml", write("bad.yaml", "seed: 1\nseed: 2\n")),
    "recipe: a tag": BadInput(
        "train bad.yaml", write("bad.yaml", "seed: !!python/name:os.system\n")
    ),
    "recipe: bases in a circle": BadInput("train bad.yaml", write("bad.yaml", "base: bad.yaml\n")),
    "recipe: no algorithm": BadInput("train bad.yaml", write("bad.yaml", "seed: 1\n")),
    "recipe: a config of Hydra": BadInput(
        "train bad.yaml", write("bad.yaml", "defaults: grpo\nseed: 1\n")
    ),
    "recipe: a config of verl": BadInput(
        "train bad.yaml", write("bad.yaml", "algorithm: {adv_estimator: gae}\n")
    ),
    "recipe: unknown algorithm": said("algorithm=pppo"),
    "recipe: an option missing": BadInput(
        "train bad.yaml",
        write(
            "bad.yaml",
            WITHOUT_A_LENGTH,
        ),
    ),
    "recipe: flat keys": BadInput("train bad.yaml", write("bad.yaml", TINY + "ppo.clip: 0.1\n")),
    "recipe: an alias": BadInput("train bad.yaml", write("bad.yaml", "a: &a [1, 1]\nb: *a\n")),
    "override: a typo": said("ppo.clop=0.1"),
    "override: no section": said("lr=0.1"),
    "override: end of a name": said("batch_size=8"),
    "override: peft's rank": said("learner.lora.r=8"),
    "override: dashes": said("--ppo.clip=0.1"),
    "override: a space": said("'ppo.clip = 0.1'"),
    "override: spaces": said("ppo.clip = 0.1"),
    "override: a flag": said("--ppo.clip 0.1"),
    "override: Hydra's plus": said("+ppo.clop=0.1"),
    "override: an unsupported option of peft": said("learner.lora.lora_dropout=0.1"),
    "override: no space in a mapping": said("policy.schedule={decay:linear}"),
    "override: no value": said("run.keep="),
    "override: a bare #": said("reward.marker=##"),
    "type: text for a number": said("ppo.clip=high"),
    "type: a number for text": said("data.prompt=12"),
    "type: a scalar for a section": said("ppo=3"),
    "range: not finite": said("policy.lr=.inf"),
    "choice: backend that is not there": said("sampler=sglang"),
    "rule: batch not divisible": said("ppo.global_batch_size=5"),
    "rule: dynamic sampling of one": said("ppo.dynamic_sampling={} ppo.num_generations=1"),
    "rule: one step ahead without a correction": said("ppo.one_step_ahead=true"),
    "rule: two that reward": said("reward_model.path=models/judge ppo.kl.coef=0.05"),
    "rule: a learned reward that nothing holds": said("reward=null reward_model.path=models/judge"),
    "rule: a bound on nothing": said("acceptance='[{metric: train/reward, steps: [1, 2]}]'"),
    "rule: a window that ends before it begins": said(
        "acceptance='[{metric: train/reward, steps: [2, 1], min: 0}]'"
    ),
    "rule: a statistic of one step": said(
        "acceptance='[{metric: train/reward, steps: [2, 2], statistic: max, max: 0}]'"
    ),
    "rule: a deviation of rewards without a baseline": BadInput(
        "train grpo_arithmetic grpo.baseline=none"
    ),
    "rule: two models": said("model.path=model model.from_recipe=sft_arithmetic"),
    "rule: no data": said("data.task=null"),
    "rule: system prompt without chat": said("data.system_prompt=Hi"),
    "rule: messages and a template": said("data.messages=talk data.prompt='\"{question}?\"'"),
    "rule: messages and chat": said(
        "data.prompt='\"{question}\"' data.messages=talk data.chat=true"
    ),
    "rule: greedy several times": BadInput(
        "generate model rows.jsonl sampling.temperature=0 num_generations=2"
    ),
    "rule: greedy and top_k": said("sampling.temperature=0 sampling.top_k=5"),
    "rule: a time limit for math": said("reward.timeout_s=5"),
    "rule: a reward without its section": said("reward.type=code reward.marker=null"),
    "rule: a verifier for every row": said("reward.verifier=kind"),
    "rule: a part without a name": said(
        "'reward={type: sum, marker: null, parts: {a-b: {type: math}}}'"
    ),
    "rule: a server without an address": said(f"'{SERVED.replace('http://', '')}'"),
    "rule: validation without rows": BadInput("train sft.yaml run.validate_every=2"),
    "rule: a loss that reads scores": BadInput("train dpo.yaml dpo.preference_loss=scale"),
    "rule: a scale without a use": BadInput("train dpo.yaml dpo.gt_reward_scale=2"),
    "rule: nothing to learn of pairs": BadInput("train dpo.yaml dpo.preference_loss_weight=0"),
    "rule: one score of two": BadInput("train dpo.yaml data.chosen_score=score"),
    "rule: a completion of pairs": BadInput("train dpo.yaml data.completion=X"),
    "rule: best between validations": said(
        "run.best.metric=validation/accuracy run.validate_every=0"
    ),
    "rule: exact where it cannot be": said("agreement.exact=require learner.compile=true"),
    "path: a variable that is not set": said("'run.folder=$NOWHERE/run'"),
    "path: no such user": own(overrides="model.path=~nobody.here/model"),
}

MODELS = {
    "model: no such folder": own(overrides="model.path=absent"),
    "model: a name of the hub": own(overrides="model.path=Qwen/Qwen2.5-1.5B"),
    "model: no config.json": own(remove("model/config.json")),
    "model: a run": own(
        lambda folder: [a_run(folder), (folder / "run/final").mkdir()],
        "model.path=run run.folder=next",
    ),
    "model: config.json torn": own(write("model/config.json", '{"model_type": "lla')),
    "model: unknown architecture": own(change("model/config.json", model_type="abacus")),
    "model: an encoder": own(
        change("model/config.json", model_type="bert", architectures=["BertForMaskedLM"])
    ),
    "model: impossible shape": own(change("model/config.json", num_key_value_heads=3)),
    "model: code of its own": own(code_of_its_own),
    "model: code that is not there": own(
        change("model/config.json", model_type="abacus", auto_map=ABACUS)
    ),
    "model: code by halves": own(
        change("model/config.json", model_type="abacus", auto_map={"AutoConfig": "abacus.Abacus"})
    ),
    "model: trusted overrides": own(overrides="--trust seed=1"),
    "model: trusted and not used": own(known_with_code, "--trust model/x.py"),
    "model: a stop token that is not there": own(
        change("model/generation_config.json", eos_token_id=10**9)
    ),
    "model: quantized": own(
        change("model/config.json", quantization_config={"quant_method": "bitsandbytes"})
    ),
    "model: adapters alone": own(adapters_only),
    "model: no context": own(
        change(
            "model/config.json",
            model_type="mamba",
            architectures=["MambaForCausalLM"],
            max_position_embeddings=None,
        )
    ),
    "model: no reward model": own(overrides="reward=null reward_model.path=model ppo.kl.coef=0"),
    "model: a pointer of Git LFS": own(write("model/model.safetensors", POINTER)),
    "tokenizer: torn": own(write("model/tokenizer.json", '{"version"')),
    "tokenizer: none": own(remove("model/tokenizer.json")),
    "tokenizer: of another model": own(small_embedding),
    "tokenizer: no chat template": own(overrides="data.chat=true"),
    "tokenizer: a chat template that is no Jinja": own(
        write("model/chat_template.jinja", "{% for m in messages %}\n{{ m.content }\n{% endfor %}"),
        "data.chat=true",
    ),
    "tokenizer: a chat template that reaches out": own(
        write("model/chat_template.jinja", "{{ messages.__class__.__mro__ }}"), "data.chat=true"
    ),
    "tokenizer: no stop token": own(
        lambda folder: [
            change("model/tokenizer_config.json", eos_token=None)(folder),
            change("model/generation_config.json", eos_token_id=None)(folder),
            change("model/config.json", eos_token_id=None)(folder),
        ]
    ),
    "weights: none": own(remove("model/model.safetensors")),
    "weights: pickles": own(pickled),
    "weights: torn": own(truncated),
    "weights: a shard missing": own(
        write(
            "model/model.safetensors.index.json",
            '{"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}',
        )
    ),
    "weights: of another shape": own(change("model/config.json", intermediate_size=48)),
    "weights: a tensor missing": own(without_tensor),
    "weights: NaN": own(with_nan),
    "weights: of eight bits": own(in_eight_bits),
    "context: prompt and response": said("sampling.max_tokens=100"),
    "context: rows of sft": BadInput("train sft.yaml sft.max_tokens=200"),
    "new model: unknown field": said("model.scratch.config.hidden_sise=3"),
    "new model: unknown type": said("model.scratch.config.model_type=lama"),
}

DATA = {
    "data: no such file": own(overrides="data.train=absent.jsonl"),
    "data: empty": own(write("rows.jsonl", "\n\n")),
    "data: one list": own(write("rows.jsonl", '[\n  {"question": "a", "answer": "1"}\n]\n')),
    "data: CSV": own(write("rows.csv", "question,answer\n"), "data.train=rows.csv"),
    "data: a text file of prompts": own(write("prompts.txt", "Once\n"), "data.train=prompts.txt"),
    "data: an object on many lines": own(add_row("{\n")),
    "data: no JSON": own(add_row('{"question": "Wh')),
    "data: a pipe": own(lambda folder: os.mkfifo(folder / "pipe.jsonl"), "data.train=pipe.jsonl"),
    "data: a score that is none": BadInput(
        "train dpo.yaml data.chosen_score=good data.rejected_score=bad",
        add_row('{"question": "a", "answer": "1", "good": true, "bad": 1}', first=True),
    ),
    "data: a field missing": own(add_row('{"text": "a"}')),
    "data: an answer missing": own(add_row('{"question": "a", "answer": null}')),
    "data: nothing to learn in a row": BadInput(
        "train sft.yaml", add_row('{"question": "a", "solution": "b"}', first=True)
    ),
    "data: messages that the template refuses": own(
        lambda folder: [
            write("rows.jsonl", '{"talk": [{"role": "user", "content": "Hi"}], "answer": "1"}\n')(
                folder
            ),
            write("model/chat_template.jinja", "{{ raise_exception('no system message') }}")(
                folder
            ),
        ],
        "data.messages=talk",
    ),
    "data: a template that is none": own(overrides="data.prompt='\"{question\"'"),
    "data: a template with doubled braces": own(overrides="data.prompt='\"{{ question }}\"'"),
    "data: only long prompts": own(overrides="data.max_prompt_tokens=3 data.overlong_prompts=skip"),
    "data: a long prompt": own(overrides="data.max_prompt_tokens=20"),
    "data: a long row of sft": BadInput("train sft.yaml sft.max_tokens=30"),
    "data: an answer twice": BadInput("""train dpo.yaml data.rejected='"{answer}"'"""),
    "data: no answer in messages": BadInput(
        "train sft.yaml data.messages=talk",
        lambda folder: [
            change("model/tokenizer_config.json", chat_template="{{ messages[0].content }}")(
                folder
            ),
            write("rows.jsonl", '{"talk": [{"role": "user", "content": "Why?"}]}\n')(folder),
        ],
    ),
    "data: fewer rows than a step": own(overrides="ppo.num_prompts_per_step=64 run.max_steps=-1"),
}

ENVIRONMENTS = {
    "environment: no such class": played("Absent"),
    "environment: a method missing": played("Stepless"),
    "environment: cannot be made": played("Needy"),
    "environment: a method takes too little": played("Seedless"),
    "environment: a stop of several tokens": played("Broken", "environment.stop=[7+5]"),
    "environment: no room for a response": played("Broken", "environment.max_tokens=8"),
    "environment: a penalty for length": played("Broken", "ppo.overlong_penalty.buffer=2"),
    "environment: an invalid cut_off_reward": played("Vague"),
    "environment: negative rewards, and nothing declared": played("Costly", "reward=null").late,
    "environment: a value on top of a whole reward": played(
        "Broken", "reward=null ppo.bootstrap_truncated=true"
    ),
}

REWARDS = {
    "reward: no such file": reward("absent.py:f"),
    "reward: no such function": reward("rewards.py:absent"),
    "reward: takes too little": reward("rewards.py:narrow"),
    "reward: raises": reward("rewards.py:broken").late,
    "reward: returns NaN": reward("rewards.py:no_number").late,
    "reward: a batch with too few": reward("rewards.py:too_few", "reward.batch=true").late,
    "reward: no server": said(f"'{SERVED}'").lost,
    "reward: the system ends its process": reward("rewards.py:killed").lost,
    "reward: unknown instruction": rewarded(
        '"asked": [{"id": "wrods", "at_least": 3}]', f"'{FOLLOWED}'"
    ),
    "reward: an instruction without a number": rewarded(
        '"asked": [{"id": "words"}]', f"'{FOLLOWED}'"
    ),
    "reward: no instructions": rewarded('"asked": []', f"'{FOLLOWED}'"),
    "reward: unknown verifier": rewarded('"kind": "maths"', f"'{BY_ROW}'"),
    "reward: no judge": rewarded('"kind": "judge"', f"'{BY_ROW}'"),
    "reward: no sandbox": rewarded(
        '"tests": ["pass"]', f"'{TESTED.replace('tests}', 'tests, wall_s: 0.00001}')}'"
    ),
}

SCORE_OF_NINE = '{"prompt": "a", "response": "b", "score": 9}\n'
JUDGED = {
    "judge: a template without the answer": judged("judge.template=Score"),
    "judge: a scale without a template": judged("judge.template=null judge.judge_score_high=10"),
    "judge: no such folder": judged("judge.path=absent"),
    "judge: questions longer than the context": judged("judge.max_prompt_tokens=900"),
    "judged: one value of a list too many": judged("self_rewarding.length_control=[0,0,0.1]"),
    "judge: a known score off the scale": judged(
        "known.judgments=known.jsonl", write("known.jsonl", SCORE_OF_NINE)
    ),
    "judged: one answer to each prompt": judged("self_rewarding.num_responses_to_gen=1"),
    "judged: greedy": judged("sampling.temperature=0"),
    "judged: fewer prompts than a step": judged("self_rewarding.global_batch_size=64"),
    "judged: new prompts unsaid": judged("self_rewarding.prompt_source=new"),
    "judged: judgments unsaid": judged(
        "self_rewarding.use_meta_judge=true self_rewarding.meta_judge_pcnt=0.5"
    ),
    "judged: a share of nothing": judged("self_rewarding.meta_judge_pcnt=0.1"),
    "judged: too few judgments to compare": judged(
        "self_rewarding.use_meta_judge=true self_rewarding.meta_judge_pcnt=0.5 "
        "judge.num_evals_to_average=1 "
        "'meta_judge={max_prompt_tokens: 80, sampling: {max_tokens: 4}}'"
    ),
}

COLUMN = '{"ids": [1, 2], "old_log_probs": [-0.1, -0.2]}\n'
PROBABILITIES = '{"old_log_probs": [0.1, 0.05], "rollout_log_probs": [0.1, 0.05]}\n' * 3
RUNS = {
    "run: folder cannot be made": said("run.folder=rewards.py/run"),
    "run: a folder of a model": own(overrides="run=model"),
    "run: a folder of something else": own(
        lambda folder: [(folder / "notes").mkdir(), write("notes/diary.md", "Dear")(folder)],
        "run.folder=notes",
    ),
    "run: no GPU": said("learner.device=cuda"),
    "run: too little memory": BadInput(
        "train tiny.yaml sampler.max_batch_size=1000000000000 --dry-run"
    ),
    "run: all rewards equal": reward(
        "rewards.py:constant", "ppo.dynamic_sampling.max_batches=2"
    ).late,
    "run: nothing was trained": replace(
        said("ppo.overlong_filtering=true sampling.max_tokens=1 run.max_steps=2").late,
        code=exit_codes.INCONCLUSIVE,
    ),
    "run: numbers break": said("critic.lr=1e30 run.max_steps=3").lost,
    "run: heads that cannot be divided": said("learner.parallel.tp=3"),
    "run: a critic's heads that cannot be divided": said(
        "learner.parallel.dp=3 critic.parallel.tp=3"
    ),
    "run: a critic on other ranks": said("learner.parallel.dp=2 critic.parallel.tp=4"),
    "run: tensor parallelism compiled": said("learner.compile=true learner.parallel.tp=2"),
    "run: adapters of nothing": said("learner.lora.target_modules=[q_porj]"),
    "run: adapters and tensor parallelism": said("learner.lora.rank=8 learner.parallel.tp=2"),
    "run: adapters on Megatron": said("learner.lora.rank=8 learner.backend=megatron"),
    "run: offload without ranks": said("learner.cpu_offload=true"),
    "run: fixed passes too small": said("learner.rows_per_pass=200"),
    "run: fixed passes over ranks": said("learner.rows_per_pass=2 learner.parallel.cp=2"),
    "run: a worker too slow": said("learner.parallel.dp=2 cluster.timeout_s=0.01").lost,
    "run: nothing scores the best": said(
        "run.best.metric=train/rewards run.save_every=1 run.max_steps=2"
    ).late,
    "generate: a recipe of another command": BadInput(
        "generate model rows.jsonl --recipe own.yaml"
    ),
    "generate: a run that is not finished": BadInput("generate run rows.jsonl", a_run),
    "plan: memory of no number": BadInput("plan own.yaml --gpus 1 --memory nanGB"),
    "doctor: probabilities": BadInput(
        "doctor analyze dump.jsonl", write("dump.jsonl", PROBABILITIES)
    ),
    "check: no run": BadInput("check model"),
    "report: a folder of runs": BadInput("report .", a_run),
    "model: a checkpoint": BadInput(
        "generate run/checkpoints/step_000020 rows.jsonl", a_checkpoint
    ),
}

CATALOGUE = {**RECIPES, **MODELS, **DATA, **REWARDS, **ENVIRONMENTS, **JUDGED, **RUNS}
