# Of the base image, only the name and tag are known here. Give the digest that you have examined; without one nothing is built:
#   docker build --build-arg BASE=python:3.11-slim@sha256:… .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG BASE
RUN printf %s "$BASE" | grep -Eq '@sha256:[0-9a-f]{64}$' || \
    { echo "BASE=$BASE has no digest, so its content may change unseen: see docs/operators.md#containers" >&2; exit 1; }
WORKDIR /src
RUN python -m venv /opt/hexveil
COPY requirements.lock pyproject.toml LICENSE README.md hexveil.py ./
COPY dpcore dpcore
COPY stream stream
COPY config/bus-fleet.toml config/riders-live.toml config/
RUN /opt/hexveil/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock && \
    /opt/hexveil/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM ${BASE}
RUN groupadd --gid 10001 hexveil && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin hexveil
COPY --from=build /opt/hexveil /opt/hexveil
COPY config/bus-fleet.toml /etc/hexveil/hexveil.toml
ENV PATH=/opt/hexveil/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
# Of the default command; whoever runs another one gives its own check, or none, as docker-compose.yml does.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:6066/readyz', timeout=3)"]
ENTRYPOINT ["hexveil"]
CMD ["worker", "--config", "/etc/hexveil/hexveil.toml"]
