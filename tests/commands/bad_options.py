"""Options of losses, optimizers and templates that do not fit; what is said of them stands in docs/errors.md."""

from __future__ import annotations

from bad_inputs import BadInput, own, said
from workspace import write

TEMPLATE = "{% if enable_thinking %}<think>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"
OPTIONS = {
    "chat template: arguments": own(
        write("model/chat_template.jinja", TEMPLATE), "data.chat=true 'data.template_args={think: true}'"
    ),
    "rule: arguments without a template": said("'data.template_args={think: true}'"),
    "data: messages as text": own(
        write("talks.jsonl", '{"question": [{"role": "user", "content": "Hi"}], "answer": "1"}\n'),
        "data.train=talks.jsonl",
    ),
    "reward: one of TRL": own(
        write("theirs.py", "def short(prompts, completions, **kwargs):\n    return [0.0]\n"),
        "reward.type=python reward.function=theirs.py:short reward.marker=null",
    ),
    "rule: another optimizer": BadInput("train sft_arithmetic optimizer.name=Muon"),
    "rule: an option that its class lacks": BadInput(
        "train simpo_arithmetic optimizer.name=SGD 'optimizer.betas=[0.9, 0.999]' 'optimizer.options={momentun: 0.9}'"
    ),
    "rule: momentum": BadInput(
        "train simpo_arithmetic optimizer.name=SGD 'optimizer.betas=[0.9, 0.999]' 'optimizer.options={nesterov: true}'"
    ),
    "rule: nothing to learn of labels": BadInput(
        "train kto_arithmetic kto.desirable_weight=0 kto.undesirable_weight=0"
    ),
    "rule: pairs of equal answers": BadInput("train online_dpo_arithmetic sampling.temperature=0"),
    "rule: robust against nothing": BadInput("train dpo_arithmetic dpo.preference_loss=robust"),
    "rule: rows of two kinds": BadInput("train kto_arithmetic data.task.pairs=true"),
}
