"""The command line. Nothing heavy is imported before a command needs it, so that --help answers at once."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Sequence

from lockstep import __version__, exit_codes, process_defaults
from lockstep.doctor import command as doctor
from lockstep.errors import InputError, LockstepError
from lockstep.paths import path_argument
from lockstep.run.stop import Stopped, hear_interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command `lockstep`. Returns the exit code."""
    options = _parsed(arguments)
    process_defaults.stay_offline()
    hear_interrupts()
    try:
        return options.command(options)
    except (LockstepError, OSError) as error:
        if options.traceback:
            raise
        print(f"lockstep: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, LockstepError) else exit_codes.INPUT
    except Stopped as stopped:
        print(f"lockstep: {stopped}", file=sys.stderr)
        return stopped.code
    except KeyboardInterrupt:
        print("lockstep: interrupted; the same command goes on from the newest checkpoint", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except Exception:
        if options.traceback:
            raise
        traceback.print_exc()
        return exit_codes.CRASH


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What argparse leaves over are overrides: behind an option, or with dashes that the recipe's own have not."""
    parser = _parser()
    options, left = parser.parse_known_args(arguments)
    if "--traceback" in left:  # wherever it stands
        left.remove("--traceback")
        options.traceback = True
    if left and "overrides" not in options:
        parser.error(f"there is no argument {left[0]!r} here")
    if left:
        options.overrides = [*options.overrides, *left]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep",
        description="Post-trains language models; the policy that is trained and the one that samples stay in step.",
        epilog="Start with: lockstep train ppo_arithmetic",
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="run a recipe; the same command again continues the run")
    train.add_argument("recipe", help="a recipe that ships with Lockstep, or a YAML file")
    train.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="options of the recipe, such as seed=1"
    )
    train.add_argument("--dry-run", action="store_true", help="check all that can be known, and start nothing")
    train.add_argument(
        "--allow-changes", action="store_true", help="go on even where recipe, data, model or code have changed"
    )
    train.set_defaults(command=_train)
    plan = commands.add_parser("plan", help="say what a recipe takes of memory and network, on paper")
    plan.add_argument("recipe", help="a recipe that ships with Lockstep, or a YAML file")
    plan.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="options of the recipe")
    plan.add_argument("--gpus", type=int, required=True, metavar="N", help="how many there are")
    plan.add_argument("--memory", required=True, metavar="SIZE", help="of each GPU, such as 80GB or 80GiB")
    plan.add_argument(
        "--config", metavar="PATH", type=path_argument, help="a config.json, where the recipe's model is not here"
    )
    plan.set_defaults(command=_plan)
    config = commands.add_parser("config", help="print a recipe as it would be run, and where each value comes from")
    config.add_argument("recipe", nargs="?", help="without it, the recipes that ship are listed")
    config.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value | key", help="a key alone asks what an option is"
    )
    config.add_argument("--explain", action="store_true", help="say what every option is, instead")
    config.set_defaults(command=_config)
    evaluate = commands.add_parser("eval", help="ask a model the questions of a file; the same command again goes on")
    _add_asking(evaluate, "questions and answers", "sampling.num_samples=4", "eval_gsm8k", "evals/")
    evaluate.set_defaults(command=_eval)
    generate = commands.add_parser("generate", help="answer the rows of a file; the same command again goes on")
    _add_asking(generate, "rows to answer", "num_generations=4", "generate", "generations/")
    generate.set_defaults(command=_generate)
    judge = commands.add_parser("judge-eval", help="compare a judge with people; the same command again goes on")
    _add_asking(judge, "ranked responses", "judge.num_evals_to_average=1", "judge_eval", "judge-evals/")
    judge.set_defaults(command=_judge_eval)
    check = commands.add_parser("check", help="compare a run's metrics with its recipe's acceptance bounds")
    check.add_argument("run", type=path_argument, help="folder of the run")
    check.set_defaults(command=_check)
    export = commands.add_parser("export", help="write a run's model as a Hugging Face folder")
    export.add_argument("run", type=path_argument, help="folder of the run")
    export.add_argument("out", type=path_argument, help="folder to write; must not exist")
    export.add_argument("--checkpoint", default="latest", help="latest, best (by run.best), or the number of a step")
    export.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"), help="of the weights (default: fp32)")
    export.add_argument("--adapter", action="store_true", help="write the adapters of learner.lora alone, as peft does")
    export.set_defaults(command=_export)
    report = commands.add_parser("report", help="write runs, also unfinished ones, as one HTML file to look at")
    report.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=path_argument,
        help="folder of a run, several are laid over each other; or of a doctor's result",
    )
    report.add_argument(
        "--out",
        metavar="FILE",
        type=path_argument,
        help="default: report.html in the run, or here if there are several",
    )
    report.set_defaults(command=_report)
    doctor.add(commands)
    return parser


def _add_asking(parser: argparse.ArgumentParser, rows: str, option: str, recipe: str, folder: str) -> None:
    """The arguments of a command that asks a model the rows of a file."""
    parser.add_argument(
        "model", metavar="MODEL", type=path_argument, help="a Hugging Face folder, or the folder of a finished run"
    )
    parser.add_argument("data", metavar="DATA", type=path_argument, help=f"{rows}: JSONL, Parquet or a data set folder")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=f"such as {option}")
    parser.add_argument("--recipe", help=f"options to begin with; without it a run's own, or {recipe}")
    parser.add_argument(
        "--out", metavar="FOLDER", type=path_argument, help=f"where the results go; without it a folder in {folder}"
    )


def _train(options: argparse.Namespace) -> int:
    from lockstep.config.loading import load

    if options.dry_run:
        from lockstep.run.dry_run import dry_run

        print(dry_run(load(options.recipe, options.overrides), options.allow_changes))
        return 0
    from lockstep.report.compared import compared_in
    from lockstep.run.train import require_trained, train

    folder = train(load(options.recipe, options.overrides), options.allow_changes)
    compared = compared_in(folder)
    if compared is not None and compared.exit_code:
        return compared.exit_code
    require_trained(folder)
    return exit_codes.OK


def _plan(options: argparse.Namespace) -> int:
    from lockstep.config.loading import load

    loaded = load(options.recipe, options.overrides)
    from lockstep.plan.command import plan

    found = plan(loaded, options.gpus, options.memory, options.config)
    print(found.text)
    return exit_codes.OK if found.fits else exit_codes.BROKEN


def _export(options: argparse.Namespace) -> int:
    from pathlib import Path

    from lockstep.run.export import export

    step = export(Path(options.run), Path(options.out), options.checkpoint, options.dtype, options.adapter)
    what, opener = ("adapters of the policy", "peft") if options.adapter else ("the policy", "transformers")
    print(f"{what} after {step} steps: {options.out} (opens with {opener})")
    return 0


def _eval(options: argparse.Namespace) -> int:
    from lockstep.inference.eval_recipe import eval_recipe

    loaded = eval_recipe(options.model, options.data, options.overrides, options.recipe, options.out)
    from lockstep.inference.evaluate import evaluate

    evaluate(loaded)
    return 0


def _generate(options: argparse.Namespace) -> int:
    from lockstep.inference.generate_recipe import generate_recipe

    loaded = generate_recipe(options.model, options.data, options.overrides, options.recipe, options.out)
    from lockstep.inference.generate import generate

    generate(loaded)
    return 0


def _judge_eval(options: argparse.Namespace) -> int:
    from lockstep.inference.judge_eval_recipe import judge_eval_recipe

    loaded = judge_eval_recipe(options.model, options.data, options.overrides, options.recipe, options.out)
    from lockstep.inference.judge_eval import judge_eval

    judge_eval(loaded)
    return 0


def _config(options: argparse.Namespace) -> int:
    from lockstep.config.help import explained, headline
    from lockstep.config.loading import describe, load, shipped

    if options.recipe is None:
        print("\n".join(f"{name:<44} {headline(path.read_text())}" for name, path in shipped().items()))
        return 0
    keys = [word for word in options.overrides if re.fullmatch(r"\w+(\.\w+)*", word)]
    loaded = load(options.recipe, [word for word in options.overrides if word not in keys])
    print(explained(loaded, keys) if keys or options.explain else describe(loaded, origins=True), end="")
    return 0


def _check(options: argparse.Namespace) -> int:
    from pathlib import Path

    from lockstep.config.loading import load_run
    from lockstep.report.acceptance import check
    from lockstep.report.log import read_metrics, require_run

    require_run(Path(options.run))
    bounds = load_run(Path(options.run)).training.acceptance
    if not bounds:
        raise InputError(f"the recipe of {options.run} has no acceptance bounds, so there is nothing to check")
    verdicts = check(bounds, read_metrics(Path(options.run)))
    for verdict in verdicts:
        print(verdict.sentence)
    return exit_codes.OK if all(verdict.passed for verdict in verdicts) else exit_codes.BROKEN


def _report(options: argparse.Namespace) -> int:
    from pathlib import Path

    from lockstep.report.doctor_folder import DoctorFolder
    from lockstep.report.html import write_report

    folders = [Path(run) for run in options.runs]
    out = Path(options.out or (folders[0] if len(folders) == 1 else Path()) / "report.html")
    doctors = [folder for folder in folders if DoctorFolder.there(folder)]
    if doctors and len(folders) > 1:
        raise InputError(f"{doctors[0]} is a doctor's, and has a page of its own; name it alone")
    if doctors:
        from lockstep.doctor.page import write_page

        write_page(doctors[0], out)
    else:
        write_report(folders, out)
    print(f"{out}  {out.stat().st_size / 1e6:.1f} MB")
    return 0
