# SPDX-License-Identifier: Apache-2.0
# The NVIDIA deployment: Triton and TensorRT-LLM 1.2.1 with the ExplicitRotary plugin.
# Pin by digest what you have tested: --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver@sha256:...
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
ARG CUDA_IMAGE=nvcr.io/nvidia/cuda:13.1.0-devel-ubuntu24.04

FROM ${TRITON_IMAGE} AS triton

FROM ${CUDA_IMAGE} AS plugin
# Any CMake of this Ubuntu will do, and the archive keeps only the newest.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake \
    && rm -rf /var/lib/apt/lists/*
# The headers and the library of the very TensorRT that will run.
COPY --from=triton /usr/local/tensorrt/include /tensorrt/include
COPY --from=triton /usr/local/tensorrt/lib /tensorrt/lib
COPY plugins/explicit_rotary /plugin
# One number (90 is Hopper, 89 Ada, 100 Blackwell) builds faster than all of them.
ARG CUDA_ARCHITECTURES=
RUN cmake -S /plugin -B /plugin/build \
        -DTENSORRT_INCLUDE_DIR=/tensorrt/include -DTENSORRT_LIBRARY_DIR=/tensorrt/lib \
        ${CUDA_ARCHITECTURES:+-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}} \
    && cmake --build /plugin/build --parallel 2 \
    # CMake skips the plugin when something is missing; here that is an error.
    && ls /plugin/build/libexplicit_rotary_trt*.so

FROM triton
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1
WORKDIR /opt/specprefill
COPY pyproject.toml LICENSE README.md ./
COPY python_backend python_backend
COPY clients clients
# TensorRT-LLM needs the versions of torch, numpy and transformers that the image has: what is
# installed constrains what comes in, and the extra `server` stays out. Not `pip freeze`: it names
# packages that came as files by their files.
RUN python3 -m pip list --format=freeze > /tmp/image.txt \
    && python3 -m pip install --constraint /tmp/image.txt '.[gateway]' \
    && rm /tmp/image.txt \
    && useradd --create-home --uid 10001 specprefill
COPY --from=plugin /plugin/build/libexplicit_rotary_*.so plugin/
COPY model_repository model_repository
COPY build_engines build_engines
COPY gpu_check gpu_check
COPY tests/contract/trtllm_api.json tests/contract/build_api.json tests/contract/
COPY configs configs
# build_engines and gpu_check are not part of the installed package.
ENV PYTHONPATH=/opt/specprefill \
    SPECPREFILL_PLUGIN_PATH=/opt/specprefill/plugin \
    SPECPREFILL_MODEL_REPOSITORY=/opt/specprefill/model_repository \
    SPECPREFILL_CONFIG=/opt/specprefill/configs/llama-3.1-70b-fp8.yaml \
    # Only inside the container; what the host publishes is up to its port mapping.
    SPECPREFILL__SERVER__HOST=0.0.0.0 \
    HF_HUB_OFFLINE=1 \
    PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000 8001 8002
# Triton's own health endpoint stays green when a Python model has died.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/models/specprefill/ready', timeout=8)"]
ENTRYPOINT []
CMD ["specprefill", "serve"]
