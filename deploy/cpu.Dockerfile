# Lockstep without GPUs, for trials, tests and preference runs of small models. In the repository's folder:
#   docker build -f deploy/cpu.Dockerfile -t lockstep:cpu .
#   docker run --rm -v "$PWD/runs:/work/runs" lockstep:cpu lockstep train ppo_quiz
FROM python:3.11-slim-bookworm AS build
RUN python -m venv /opt/lockstep
WORKDIR /src
COPY . .
# Every version is that of constraints.txt; torch is its build for CPUs.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/lockstep/bin/pip install -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu \
    ".[ray,datasets,lora,tensorboard]"

FROM python:3.11-slim-bookworm
# Health checks of KubeRay call wget; bubblewrap runs the programs of code rewards.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap=0.8.* libseccomp2=2.5.* wget=1.21.* && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 lockstep && mkdir -p /work/runs && chown -R lockstep /work
COPY --from=build /opt/lockstep /opt/lockstep
ENV PATH=/opt/lockstep/bin:$PATH
USER 1000
WORKDIR /work
CMD ["lockstep", "--help"]
