# syntax=docker/dockerfile:1
# All steps that install are in docker/install.sh, which a test runs without Docker.
ARG PYTHON_VERSION=3.13
FROM python:${PYTHON_VERSION}-slim-bookworm AS base
# The CPU that the kernels are compiled for: x86-64-v3 (AVX2) runs on every x86 server since 2015.  For other machines
# build with --build-arg CPU=generic.  The same two values at build and at run time, or Numba would compile anew.
ARG CPU=x86-64-v3
ENV NUMBA_CPU_NAME=${CPU} \
    NUMBA_CPU_FEATURES="" \
    NUMBA_CACHE_DIR=/opt/rankmill/numba-cache

FROM base AS build
COPY . /src
RUN sh /src/docker/install.sh /src /opt/rankmill

FROM base
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir /data --shell /usr/sbin/nologin rankmill \
    && mkdir /data && chown 10001:0 /data && chmod 775 /data
COPY --from=build /opt/rankmill /opt/rankmill
# Numba asks whether its cache folder can be written, even where it only reads: it belongs to the user who runs.
RUN chown -R 10001:0 /opt/rankmill/numba-cache && chmod -R g+rwX /opt/rankmill/numba-cache
ENV PATH=/opt/rankmill/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
ENTRYPOINT ["rankmill"]
CMD ["--help"]
