FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/hexveil
COPY requirements.lock pyproject.toml LICENSE README.md hexveil.py ./
COPY dpcore dpcore
COPY stream stream
RUN /opt/hexveil/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock && \
    /opt/hexveil/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN groupadd --gid 10001 hexveil && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin hexveil
COPY --from=build /opt/hexveil /opt/hexveil
COPY config/bus-fleet.toml /etc/hexveil/hexveil.toml
ENV PATH=/opt/hexveil/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["hexveil"]
CMD ["worker", "--config", "/etc/hexveil/hexveil.toml"]
