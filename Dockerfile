# syntax=docker/dockerfile:1
# All steps that install are in docker/install.sh, which a test runs without Docker.  How to run it: docker/compose.yaml,
# docker/kubernetes-cronjob.yaml and docs/operations.md.
ARG PYTHON_VERSION=3.13.16
FROM python:${PYTHON_VERSION}-slim-bookworm AS base
# The CPU that the kernels are compiled for: x86-64-v3 (AVX2) runs on every x86 server since 2015.  For other machines
# build with --build-arg CPU=generic.  The same two values at build and at run time, or Numba would compile anew.
ARG CPU=x86-64-v3
ENV NUMBA_CPU_NAME=${CPU} \
    NUMBA_CPU_FEATURES="" \
    NUMBA_CACHE_DIR=/opt/rankmill/numba-cache

FROM base AS build
# binutils has strip, for docker/install.sh; it stays in this stage.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends binutils
COPY . /src
RUN sh /src/docker/install.sh /src /opt/rankmill

FROM base
ARG REVISION=""
LABEL org.opencontainers.image.title="rankmill" \
      org.opencontainers.image.description="Learning to rank with gradient-boosted trees, as a pipeline" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# Volumes take the owner and the rights of these folders when they are new.  Whoever runs as another user brings the rights.
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin rankmill \
    && for folder in /data /var/lib/rankmill/work /var/lib/rankmill/registry; do \
         mkdir -p "$folder" && chown 10001:0 "$folder" && chmod 775 "$folder"; done
# Nothing is ever written below it: not by its user, nor by any other.
COPY --from=build /opt/rankmill /opt/rankmill
# The base comes without bytecode of Python's own modules, and nobody may write it later: what we load is compiled here.
RUN /opt/rankmill/bin/python -I -c "import rankmill.cli, rankmill.run.runner" && /opt/rankmill/bin/rankmill --help > /dev/null
ENV PATH=/opt/rankmill/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /data
# Signals go to process 1, which this is: no shell, no init.
ENTRYPOINT ["rankmill"]
CMD ["--help"]
