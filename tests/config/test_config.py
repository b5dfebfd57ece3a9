"""Recipes: found, merged, overridden, validated; every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.cli import main
from lockstep.config.help import explain_options
from lockstep.config.loading import RecipeError, describe_recipe, load_recipe
from lockstep.config.recipe_files import find_shipped

PPO = """
algorithm: ppo
model: {from_recipe: sft_arithmetic}
data:
  task: {name: arithmetic, train_questions: 64, validation_questions: 8}
  max_prompt_tokens: 64
reward: {type: math}
sampling: {max_tokens: 36}
validation_sampling: {max_tokens: 36, temperature: 0}
ppo: {num_prompts_per_step: 16, global_batch_size: 8, clip: 0.2}
policy: {lr: 1e-5}
critic: {lr: 1.0e-3, betas: [0.9, 0.99]}
run: {max_steps: 3}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(PPO)
    return str(path)


def ppo(recipe: str, *overrides: str) -> PPORecipe:
    loaded = load_recipe(recipe, overrides).recipe
    assert isinstance(loaded, PPORecipe)
    return loaded


def refusal(recipe: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return str(caught.value)


def variant(tmp_path: Path, text: str) -> str:
    path = tmp_path / "variant.yaml"
    path.write_text(text)
    return str(path)


def test_floats_without_a_point_are_numbers_in_files_and_overrides(recipe: str) -> None:
    assert ppo(recipe).policy.lr == 1e-5
    assert ppo(recipe, "policy.lr=3e-6").policy.lr == 3e-6


def test_overrides_are_typed_and_take_precedence_over_recipe_file(recipe: str) -> None:
    options = ppo(
        recipe,
        "ppo.clip=0.1",
        "critic.betas=[0, 0.5]",
        "run.keep=5",
        "ppo.overlong_penalty.buffer=4",
    )
    assert options.ppo.clip == 0.1
    assert options.critic.betas == (0.0, 0.5)
    assert options.run.keep == 5
    assert options.ppo.overlong_penalty is not None
    assert options.ppo.overlong_penalty.buffer == 4


def test_null_length_of_a_run_leaves_the_other_length(recipe: str) -> None:
    expected = {"max_epochs=null": (3, 1), "max_steps=null": (-1, 1)}
    for word, lengths in expected.items():
        run = ppo(recipe, f"run.{word}").run
        assert (run.max_steps, run.max_epochs) == lengths
    assert "max_epochs is null" in refusal(recipe, "run.max_epochs=null", "run.max_steps=-1")


def test_base_is_merged_key_by_key_and_lists_are_replaced(tmp_path: Path, recipe: str) -> None:
    (tmp_path / "nested").mkdir()
    child = tmp_path / "nested" / "child.yaml"
    child.write_text("base: ../small.yaml\ncritic: {betas: [0.5, 0.6]}\nppo: {clip: 0.3}\n")
    loaded = load_recipe(str(child), ["ppo.gamma=0.5"])
    assert isinstance(loaded.recipe, PPORecipe)
    assert loaded.name == "child"
    assert loaded.recipe.critic.betas == (0.5, 0.6)
    assert loaded.recipe.critic.lr == 1e-3
    assert loaded.recipe.ppo.global_batch_size == 8
    assert (loaded.recipe.ppo.clip, loaded.recipe.ppo.gamma) == (0.3, 0.5)


def test_every_shipped_recipe_loads_by_name() -> None:
    assert find_shipped()
    for name in find_shipped():
        assert load_recipe(name).name == name


@pytest.mark.parametrize(
    "override", ["model.path=FOLDER", "model.scratch={config: {model_type: llama}}"]
)
def test_new_model_source_replaces_from_recipe(recipe: str, override: str) -> None:
    assert ppo(recipe, override).model.from_recipe is None


def test_data_train_option_replaces_task_of_recipe(recipe: str, tmp_path: Path) -> None:
    assert ppo(recipe, "data.train=rows.jsonl").data.task is None
    child = variant(tmp_path, f"base: {Path(recipe).name}\ndata: {{train: rows.jsonl}}\n")
    assert ppo(child).data.task is None


def test_override_replaces_all_listed_train_files(recipe: str, tmp_path: Path) -> None:
    several = ppo(
        recipe,
        "data.train=[a.jsonl, b.jsonl]",
        "data.weights=[1, 2.5]",
        "data.validation=[c.jsonl]",
    ).data
    assert (several.train, several.weights, several.validation) == (
        ("a.jsonl", "b.jsonl"),
        (1.0, 2.5),
        ("c.jsonl",),
    )
    child = variant(tmp_path, f"base: {Path(recipe).name}\ndata: {{train: [a.jsonl, b.jsonl]}}\n")
    assert ppo(child, "data.train=[x.jsonl]").data.train == ("x.jsonl",)
    assert ppo(child, "data.train=x.jsonl").data.train == "x.jsonl"


def test_data_messages_and_data_prompt_replace_each_other(recipe: str, tmp_path: Path) -> None:
    templated = variant(
        tmp_path, f"base: {Path(recipe).name}\ndata: {{prompt: 'Q: {{question}}'}}\n"
    )
    assert ppo(templated, "data.messages=talk").data.messages == "talk"
    (tmp_path / "talk.yaml").write_text(f"base: {Path(recipe).name}\ndata: {{messages: talk}}\n")
    assert ppo(str(tmp_path / "talk.yaml"), "data.prompt='A: {question}'").data.messages is None
    assert "set only one of prompt and messages" in refusal(
        recipe, "data.messages=talk", "data.prompt='A: {question}'"
    )


def test_a_scalar_for_a_section_sets_its_backend_or_the_runs_folder(recipe: str) -> None:
    assert ppo(recipe, "learner=torch", "learner.dtype=bf16").learner.dtype == "bf16"
    assert load_recipe(recipe, ["run=here"]).run_folder == Path("here")
    reward = ppo(recipe, "reward=mine.py:f").reward
    assert reward is not None
    assert (reward.type, reward.function, reward.marker) == ("python", "mine.py:f", None)
    assert "is \"maths\", but should be 'math'" in refusal(recipe, "reward=maths")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clip=0.1", "override clip=0.1: unknown option clip; did you mean ppo.clip?"),
        ("ppo.kl={coef: 0.1, placment: loss}", "override ppo.kl={coef: 0.1, placment: loss}: "
                                               "unknown option "
         "ppo.kl.placment; did you mean ppo.kl.placement?"),
        ("reward={type: sum, parts: {e: {type: math, markr: x}}}",
         "override reward={type: sum, parts: {e: {type: math, markr: x}}}: unknown option "
         "reward.parts.e.markr; did you mean reward.parts.e.marker?"),
        ("seed='3'", "override seed='3': seed is \"3\", but should be a whole number"),
        ("data.train=3", "override data.train=3: data.train is 3, but should be text or a list"),
        ("data.train=[a, 3]", ("override data.train=[a, 3]: data.train is a list, but should be "
                              "text or a list of text")),
        ("data.train=[]", ("override data.train=[]: data.train is a list, but should be text or a "
                          "longer list")),
        ("algorithm=pppo", 'override algorithm=pppo: algorithm is "pppo"; choose one of: sft, ppo, '
                           'grpo, dpo, '
         "kto, orpo, simpo, online_dpo, reward_model, distill, self_rewarding, eval, "
         "generate, doctor, eval_judge, or name your own as "
         "file.py:Class or package.module:Class"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_refused_in_one_sentence(
    recipe: str, override: str, message: str
) -> None:
    assert refusal(recipe, override) == message


def test_a_problem_in_a_base_names_the_base(tmp_path: Path) -> None:
    (tmp_path / "bottom.yaml").write_text(PPO.replace("clip: 0.2", "clip: x"))
    top = variant(tmp_path, "base: bottom.yaml\nseed: 1\n")
    assert refusal(top).startswith(f"{tmp_path / 'bottom.yaml'}: ppo.clip is")


def test_recipe_digest_changes_only_with_options_that_may_change_results(recipe: str) -> None:
    loaded = load_recipe(recipe)
    assert load_recipe(recipe, ["run.folder=elsewhere"]).digest == loaded.digest
    assert load_recipe(recipe, ["ppo.clip=0.2"]).digest == loaded.digest
    assert load_recipe(recipe, ["trackers.wandb={}"]).digest == loaded.digest
    bound = "acceptance=[{metric: train/reward, steps: [1, 2], statistic: mean, min: 0.1}]"
    for option in (bound, "sampler.timeout_s=5"):
        assert load_recipe(recipe, [option]).digest == loaded.digest
    for option in ("sampler.max_batch_size=7", "sampler.replicas=3"):
        assert load_recipe(recipe, [option]).digest != loaded.digest
    others = [
        load_recipe(recipe, [change]).digest
        for change in ("ppo.clip=0.1", "seed=1", "run.max_steps=4")
    ]
    assert len({loaded.digest, *others}) == 4


def test_run_is_named_after_recipe_changed_options_and_short_hash(
    recipe: str, in_tmp: Path
) -> None:
    def name_of(*overrides: str) -> str:
        loaded = load_recipe(recipe, overrides)
        name, _, short = loaded.run_folder.name.rpartition("-")
        assert loaded.digest.startswith(short)
        return name

    assert name_of() == name_of("trackers.wandb={}") == "small"
    named = "small-seed=1_model=a-b_clip=0.1"
    assert name_of("seed=1", "ppo.clip=0.1", "model.path='x/a b'") == named
    assert len(name_of(*(f"data.prompt='{'é/' * 90}{{question}}'", f"data.answer={'a' * 90}"))) < 80
    assert (
        name_of("model.path=runs/first/final", "data={chat: true, template_args: {a/b: 1}}")
        == "small-chat=True_a-b=1"
    )


def test_options_written_differently_find_the_run_of_the_same_identity(
    recipe: str, in_tmp: Path
) -> None:
    first = load_recipe(recipe, ["seed=1", "ppo.clip=0.1"]).run_folder
    first.mkdir(parents=True)
    assert load_recipe(recipe, ["ppo={clip: 0.1, clip_high: null}", "seed=1"]).run_folder == first
    assert load_recipe(recipe, ["ppo.clip=0.1", "seed=2"]).run_folder != first


def test_warm_start_is_not_named_after_the_options_it_takes_over() -> None:
    first = load_recipe("ppo_arithmetic").warm_start
    assert first is not None
    assert first.run_folder.name == f"{first.name}-{first.digest[:6]}"


def test_described_recipe_loads_as_equal_recipe_with_same_digest(
    recipe: str, tmp_path: Path
) -> None:
    odd = [
        "data.prompt='{question}: 1e5\n'",
        "model.path='1e5'",
        "data.system_prompt='no'",
        "data.chat=true",
    ]
    loaded = load_recipe(recipe, odd)
    again = load_recipe(variant(tmp_path, describe_recipe(loaded)))
    assert again.recipe == loaded.recipe
    assert again.digest == loaded.digest


def test_described_recipe_names_origin_of_each_value_and_still_loads(
    recipe: str, tmp_path: Path
) -> None:
    child = variant(
        tmp_path,
        f"base: {Path(recipe).name}\ncritic: {{betas: [0.5, 0.6]}}\nppo: {{kl: {{coef: 0.1}}}}\n",
    )
    loaded = load_recipe(
        child,
        ["data.prompt='Q: {question} # 1\n'", "model.path=X", "ppo.clip_high=null", "run=here"],
    )
    text = describe_recipe(loaded, origins=True)
    assert load_recipe(variant(tmp_path, text)).recipe == loaded.recipe
    origins = {
        line.split(":")[0].strip(): line.rsplit("  # ", 1)[-1]
        for line in text.splitlines()
        if "  # " in line
    }
    names = {
        "betas": child,
        "coef": child,
        "gamma": "default",
        "clip": recipe,
        "global_batch_size": recipe,
    }
    names |= {
        "prompt": "override",
        "path": "override",
        "clip_high": "override",
        "folder": "override",
    }
    assert {name: origins[name] for name in names} == names
    assert origins["from_recipe"] == "default", "another source takes it back"
    columns = {
        line.index("  # ") for line in text.splitlines() if "  # " in line and len(line) < 60
    }
    assert len(columns) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ppo.clip", "ppo:\n  clip: 0.3  # ratio is clipped to"),
        (
            "critic.betas",
            (
                "  betas:  # decay rates of the running means of the gradient and its square\n  - "
                "0.9\n  - 0.99\n"
            ),
        ),
        ("ppo.overlong_penalty", "    buffer: null"),
        ("ppo.kl", "      gain: 0.1      # rate at which the coefficient adapts"),
    ],
)
def test_explain_options_shows_value_and_meaning_of_option(
    recipe: str, key: str, text: str
) -> None:
    assert text in explain_options(load_recipe(recipe, ["ppo.clip=0.3"]), [key])


def test_recipes_are_listed_with_a_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(find_shipped())
    assert all(line.endswith(".") and ". " not in line.replace("al. ", "") for line in lines)


@pytest.mark.parametrize(
    "layout", ["learner.parallel.dp=2", "learner.parallel.tp=2", "learner=megatron", "cluster=ray"]
)
def test_warm_start_digest_does_not_depend_on_learner_layout(layout: str) -> None:
    alone, laid_out = (
        load_recipe("ppo_arithmetic").warm_start,
        load_recipe("ppo_arithmetic", [layout]).warm_start,
    )
    assert alone is not None
    assert laid_out is not None
    assert laid_out.digest == alone.digest


def test_warm_start_digest_depends_on_seed_and_dtype() -> None:
    digests = {
        first.digest
        for override in ("seed=1", "seed=2", "learner.dtype=bf16")
        if (first := load_recipe("ppo_arithmetic", [override]).warm_start) is not None
    }
    assert len(digests) == 3


def test_from_recipe_path_is_resolved_from_recipe_folder_or_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or from the working directory, as in the recipe that a run folder keeps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rungs").mkdir()
    (tmp_path / "rungs" / "first.yaml").write_text("base: sft_arithmetic\n")
    for folder, named in {
        "rungs": "first.yaml",
        "beside": "../rungs/first.yaml",
        "kept": "rungs/first.yaml",
    }.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "later.yaml").write_text(
            f"base: ppo_arithmetic\nmodel: {{from_recipe: {named}}}\n"
        )
        loaded = load_recipe(f"{folder}/later.yaml")
        assert loaded.training_recipe.model.from_recipe == "rungs/first.yaml"
        assert loaded.warm_start is not None
    assert load_recipe(str(tmp_path / "rungs/later.yaml")).warm_start is not None
    monkeypatch.chdir(tmp_path / "rungs")
    assert load_recipe("later.yaml").training_recipe.model.from_recipe == "first.yaml"
