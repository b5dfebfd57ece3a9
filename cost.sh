A=/work/shared/assets
cd /tmp/w/watchtry
PYTHONPATH=/tmp/w/wt/watch OMP_NUM_THREADS=1 timeout 380 /tmp/w/venv/bin/python -m lockstep train ppo_gsm8k model.path=$A/models/stories260K/hf data.train=$A/data/gsm8k/train.jsonl data.validation=$A/data/gsm8k/test.jsonl data.max_prompt_tokens=400 sampling.max_tokens=64 validation_sampling.max_tokens=8 ppo.num_prompts_per_step=8 ppo.global_batch_size=4 data.max_validation_samples=2 run.max_steps=40 run.validate_every=0 run.save_every=40 learner.device=cpu learner.dtype=bf16 run.folder=cost ppo.overlong_filtering=false "$@"
