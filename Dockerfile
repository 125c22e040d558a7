# syntax=docker/dockerfile:1
# headrace with PyTorch.   docker build -t headrace .   then:   docker run --rm --gpus all --shm-size 1g -v /data:/data headrace doctor
# PyTorch's wheels bring the CUDA libraries; the host needs NVIDIA's driver and container toolkit.

FROM rust:1.90-slim-bookworm AS build
# Compilers of the base image's own release: a pinned version would leave its mirror within months.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake nasm python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY Cargo.toml Cargo.lock pyproject.toml README.md LICENSE ./
COPY crates crates
COPY python python
RUN python3 -m venv /tools \
    && /tools/bin/pip install --no-cache-dir "maturin>=1.7,<2" \
    && /tools/bin/maturin build --release --locked --out /wheels

FROM python:3.12-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(ls /wheels/headrace-*.whl)[train,aws]"
RUN useradd --create-home --uid 1000 headrace
# As a number: Kubernetes' runAsNonRoot accepts no name.
USER 1000
WORKDIR /home/headrace
ENTRYPOINT ["headrace"]
CMD ["doctor"]
