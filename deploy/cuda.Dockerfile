# Lockstep with vLLM for NVIDIA GPUs, for one machine, Slurm and Kubernetes. In the repository's folder:
#   docker build -f deploy/cuda.Dockerfile -t lockstep:cuda .
#   docker run --rm --gpus all --ipc host -v "$PWD/runs:/work/runs" lockstep:cuda lockstep gpu-check --out runs/gpu-check
FROM python:3.11-slim-bookworm AS build
RUN python -m venv /opt/lockstep
WORKDIR /src
COPY . .
# constraints.txt pins torch 2.13.0 and vLLM 0.32.0, which asks for that torch. Their wheels bring CUDA's libraries: the host
# needs only a driver for CUDA 13.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/lockstep/bin/pip install -c constraints.txt ".[ray,vllm,megatron,datasets,lora,tensorboard,wandb]"

FROM python:3.11-slim-bookworm
# Triton compiles its launchers with gcc; health checks of KubeRay call wget.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap=0.8.* libseccomp2=2.5.* gcc=4:12.2.* libc6-dev=2.36-* wget=1.21.* && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 lockstep && mkdir -p /work/runs && chown -R lockstep /work
COPY --from=build /opt/lockstep /opt/lockstep
ENV PATH=/opt/lockstep/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /work
CMD ["lockstep", "--help"]
