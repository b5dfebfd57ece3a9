#!/bin/bash
# GRPO on two machines with eight GPUs each: `sbatch deploy/slurm.sh`, in a folder that all nodes share, with an environment that
# has Lockstep, Ray and vLLM. The same job again resumes the run. For other sizes change --nodes and the two numbers at the end.
#SBATCH --job-name=lockstep
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --output=lockstep-%j.log
set -euo pipefail
# Models and rows of the hub: fetched once, by the command below, where all nodes find them.
export HF_HOME="${HF_HOME:-$PWD/hf}"

# One Ray on all nodes, with a token, which lies in the home folder that the nodes share.
export RAY_AUTH_MODE=token
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ray get-auth-token --generate > /dev/null
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --block &
for _ in $(seq 60); do
    ray status > /dev/null 2>&1 && break
    sleep 2
done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    workers=$((SLURM_JOB_NUM_NODES - 1))
    srun --nodes="$workers" --ntasks="$workers" --exclude="$head" ray start --address="$head:6379" --block &
fi

# The loop runs here, on the first node, and waits until the cluster has room. Five minutes before the time limit Slurm sends
# SIGTERM: the run saves and ends with 143.
lockstep train grpo_gsm8k model.path=hf:Qwen/Qwen2.5-1.5B-Instruct \
    data.train=hf:datasets/openai/gsm8k/main/train-00000-of-00001.parquet \
    data.validation=hf:datasets/openai/gsm8k/main/test-00000-of-00001.parquet \
    cluster=ray cluster.ray.address=auto cluster.ray.cpus_per_worker=8 cluster.ray.timeout_s=600 \
    learner.parallel.dp=16 sampler=vllm sampler.replicas=16 run.folder=run &
run=$!
trap 'kill -TERM $run' TERM
code=0
wait $run || code=$?
while kill -0 $run 2> /dev/null; do # the trap cut the wait short
    code=0
    wait $run || code=$?
done
exit $code
