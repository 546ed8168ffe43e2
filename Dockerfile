# syntax=docker/dockerfile:1@sha256:2780b5c3bab67f1f76c781860de469442999ed1a0d7992a5efdf2cffc0e3d769
# docker/install.sh does the installation; a test runs it without Docker.  How to run the image: docker/compose.yaml,
# docker/kubernetes-cronjob.yaml and docs/operations.md.
# The digest is that of the index of all platforms, so that a build next year starts from the same bytes.
ARG BASE=python:3.13.16-slim-bookworm@sha256:a1165e272e578941b84abc79e4ab38a0305cd12803a5c4247979ac7655f4d641
FROM ${BASE} AS base

FROM base AS build
# binutils has strip, for docker/install.sh; it stays in this stage.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends binutils
COPY . /src
# What docker/install.sh installs: cloud, or dask for docker/compose-cluster.yaml.
ARG LOCK=cloud
RUN sh /src/docker/install.sh /src /opt/rankmill

FROM base
ARG REVISION=""
LABEL org.opencontainers.image.title="rankmill" \
      org.opencontainers.image.description="Learning to rank with gradient-boosted trees, as a pipeline" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# New volumes inherit the owner and permissions of these folders.  Other users have to set permissions themselves.
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin rankmill \
    && for folder in /data /var/lib/rankmill/work /var/lib/rankmill/registry /var/lib/rankmill/kernels; do \
         mkdir -p "$folder" && chown 10001:0 "$folder" && chmod 775 "$folder"; done
# Read-only at run time, for any user.  The kernels in it run on every x86 server since 2015 (AVX2, x86-64-v3); an older
# processor compiles into NUMBA_CACHE_DIR, as `rankmill warm` does for a newer one: a volume there keeps that.
COPY --from=build /opt/rankmill /opt/rankmill
# Compile the bytecode of the modules that we load: the base image has none, and it cannot be written later.
RUN /opt/rankmill/bin/python -I -c "import rankmill.cli, rankmill.run.runner" && /opt/rankmill/bin/rankmill --help > /dev/null
ENV PATH=/opt/rankmill/bin:$PATH \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/var/lib/rankmill/kernels \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /data
# For rankmill schedule: unhealthy if no run of the work folder has succeeded for 26 hours.  Docker knows the codes 0 and 1 only.
HEALTHCHECK --interval=5m --timeout=30s --start-period=1h --retries=1 \
    CMD rankmill health /var/lib/rankmill/work --max-age 26h || exit 1
# rankmill is process 1, without shell or init, so it receives signals.
ENTRYPOINT ["rankmill"]
CMD ["--help"]
