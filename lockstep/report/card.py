"""The model card of a run's model: what it is, how it was made, and its figures.

Markdown, as model hubs display it.
"""

from __future__ import annotations

from pathlib import Path

from lockstep.report.agreement import summarize_agreement
from lockstep.report.held_out import list_headlines
from lockstep.report.log import read_environment, read_metrics
from lockstep.report.terminal import markdown_table


def render_card(
    run: Path, algorithm: str, base: str, step: int, is_classifier: bool = False
) -> str:
    """Writes the card of the model after `step` steps.

    Args:
        run: Folder of the run.
        algorithm: Algorithm of the recipe.
        base: The initial model.
        step: Number of finished steps.
        is_classifier: Whether it scores sequences instead of writing them.
    """
    recipe = (run / "recipe.yaml").read_text(encoding="utf-8")
    environment = read_environment(run)
    name = environment.get("recipe", algorithm)
    rows = [row for row in read_metrics(run) if row["step"] <= step]
    versions = ", ".join(
        f"{key} {environment.get(key, 'unknown')}" for key in ("lockstep", "torch", "transformers")
    )
    found = summarize_agreement(rows)
    if found.tokens:
        agreement = f"\nTraining and sampling: {found.sentence}\n"
    else:
        agreement = ""
    return f"""---
library_name: transformers
pipeline_tag: {"text-classification" if is_classifier else "text-generation"}
tags: [lockstep, {algorithm}]
---
# {name}

`{base}` after {step} steps of the recipe `{name}` (algorithm: {algorithm}), with {versions}.

## Figures
{markdown_table(("", "first → last"), list_headlines(rows))}

Brackets: 95 % intervals over held-out rows.
{agreement}
## How it was made
`lockstep train recipe.yaml` with this `recipe.yaml`:

```yaml
{recipe.strip()}
```
"""
