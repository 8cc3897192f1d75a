# Images of Tiered: `docker build --target coordinator|worker|engine .`, all of them with `make images`.
#
# Every target has a Python environment in /opt/tiered, runs as the user 10001, writes to no place of its own, and needs
# no more than its settings in the environment. `vllm` at the end is for GPUs; the others do not need what it is built on.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

# What is installed, without what is ours: the layers of packages stay as long as these lists do.
FROM ${PYTHON_IMAGE} AS requirements
WORKDIR /requirements
COPY pyproject.toml deploy/docker/requirements.py /src/
RUN cd /src \
    && python requirements.py > /requirements/all.txt \
    && python requirements.py server > /requirements/coordinator.txt \
    && python requirements.py worker otel > /requirements/worker.txt \
    && python requirements.py transformers > /requirements/engine.txt

# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS say where packages come from, if not from PyPI. PyPI's torch for
# Linux brings CUDA; the CPU build is a tenth of that: name its index by PIP_EXTRA_INDEX_URL.
FROM ${PYTHON_IMAGE} AS packages
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /requirements
RUN python -m venv --without-pip /opt/tiered
COPY constraints.txt .
COPY --from=requirements /requirements/all.txt .
RUN pip --python /opt/tiered/bin/python install -c constraints.txt -r all.txt

FROM packages AS coordinator-packages
COPY --from=requirements /requirements/coordinator.txt .
RUN pip --python /opt/tiered/bin/python install -c constraints.txt -r coordinator.txt

FROM packages AS worker-packages
COPY --from=requirements /requirements/worker.txt .
# Without the headers for building extensions of torch, which nobody does here.
RUN pip --python /opt/tiered/bin/python install -c constraints.txt -r worker.txt \
    && rm -rf /opt/tiered/lib/python3.11/site-packages/torch/include

# With pip itself, which fetches the demo's model.
FROM worker-packages AS engine-packages
COPY --from=requirements /requirements/engine.txt .
RUN pip --python /opt/tiered/bin/python install -c constraints.txt -r engine.txt pip

FROM ${PYTHON_IMAGE} AS code
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv --without-pip /opt/tiered
COPY pyproject.toml README.md LICENSE ./
# A symbolic link of the package leads there.
COPY tests/fixtures/tau_airline/conversations.jsonl tests/fixtures/tau_airline/
COPY tiered tiered
COPY coordinator coordinator
COPY worker worker
RUN pip wheel --no-deps --wheel-dir /dist . \
    && pip --python /opt/tiered/bin/python install --no-deps /dist/*.whl

FROM ${PYTHON_IMAGE} AS base
ARG VERSION=unknown
LABEL org.opencontainers.image.title="Tiered" \
      org.opencontainers.image.description="A distributed, tiered, multi-tenant KV cache for LLM inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# Volumes that are first mounted at these folders belong to the same user; those of /prepare are docker-compose.yml's.
RUN groupadd --gid 10001 tiered \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tiered \
    && install -d -o tiered -g tiered -m 0700 /run/tiered /var/lib/tiered /var/cache/tiered \
        /prepare/redis /prepare/cluster /prepare/admin /prepare/read /prepare/keys /prepare/clients /prepare/grafana \
        /prepare/redis-data /prepare/redis-nodes /prepare/prometheus-data /prepare/grafana-data
ENV PATH=/opt/tiered/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY deploy/docker/healthcheck.py /usr/local/bin/healthcheck
USER 10001:10001
WORKDIR /

FROM base AS coordinator
COPY --from=coordinator-packages /opt/tiered /opt/tiered
COPY --from=code /opt/tiered /opt/tiered
EXPOSE 8080
ENTRYPOINT ["tiered-coordinator"]

FROM base AS worker
COPY --from=worker-packages /opt/tiered /opt/tiered
COPY --from=code /opt/tiered /opt/tiered
ENTRYPOINT ["tiered-worker"]

FROM base AS engine
# The model is looked for in /var/cache/tiered, and nowhere else once it is there.
ENV TIERED_CACHE_DIR=/var/cache/tiered HF_HOME=/tmp/huggingface HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
COPY --from=engine-packages /opt/tiered /opt/tiered
COPY --from=code /opt/tiered /opt/tiered
EXPOSE 8000
ENTRYPOINT ["tiered", "serve"]
CMD ["demo"]

# vLLM with the connector, for deploy/compose.gpu.yml. The last targets, so that no other needs their base. What an index
# asks for stays in the first of the two: build arguments are in the history of an image, credentials in them too.
FROM ${VLLM_IMAGE} AS vllm-packages
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
COPY --from=code /dist /dist
# Without extras: torch is vLLM's own.
RUN python3 -m pip wheel --no-cache-dir --wheel-dir /wheels /dist/*.whl

FROM ${VLLM_IMAGE} AS vllm
ARG VERSION=unknown
LABEL org.opencontainers.image.title="Tiered with vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=vllm-packages /wheels /tmp/wheels
# By name, so that what vLLM has already stays as it is where it will do.
RUN python3 -m pip install --no-cache-dir --no-index --find-links /tmp/wheels tiered-kv \
    && rm -rf /tmp/wheels \
    && groupadd --gid 10001 tiered \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/tmp --shell /usr/sbin/nologin tiered \
    && install -d -o tiered -g tiered -m 0700 /run/tiered /var/cache/huggingface
# Caches of compiled kernels are below the home.
ENV HOME=/var/tmp TMPDIR=/var/tmp HF_HOME=/var/cache/huggingface
USER 10001:10001
