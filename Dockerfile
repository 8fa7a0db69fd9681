# syntax=docker/dockerfile:1
# The server's version, as in docker-compose.yml: an older pg_dump refuses it.
ARG POSTGRES=18
FROM postgres:${POSTGRES}-bookworm AS postgres

FROM python:3.13-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/parley
WORKDIR /src
# requirements-cluster.lock has the extra postgres as well.
ARG REQUIREMENTS=requirements.lock
COPY requirements.lock requirements-cluster.lock ./
RUN /opt/parley/bin/pip install --require-hashes -r "$REQUIREMENTS"
COPY requirements-build.lock ./
RUN pip install --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY agent agent
COPY adapters adapters
COPY migrations migrations
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/parley/bin/pip install --no-deps /wheels/*.whl

FROM python:3.13-slim-bookworm AS alone
RUN useradd --system --uid 10001 --home-dir /data --no-create-home parley \
 && install -d -o parley -g parley -m 0700 /data /shared /shared/workspaces
COPY --from=build /opt/parley /opt/parley
ENV PATH="/opt/parley/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    PARLEY_HOME=/data \
    PARLEY_WEB__HOST=0.0.0.0
# By its number: Kubernetes refuses a name where it asks for a user that is not root.
USER 10001
VOLUME ["/data"]
EXPOSE 8765
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=3s --start-period=15s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/healthz', timeout=2)"]
ENTRYPOINT ["parley"]
CMD ["run"]

# What replicas run: with pg_dump and pg_restore, from where the server's own image has the server.
FROM alone AS cluster
ARG POSTGRES
USER 0
COPY --from=postgres /usr/local/share/keyrings/postgres.gpg.asc /usr/local/share/keyrings/
COPY --from=postgres /etc/apt/sources.list.d/pgdg.list /etc/apt/sources.list.d/
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "postgresql-client-$POSTGRES" \
 && rm -rf /var/lib/apt/lists/* \
 && pg_dump --version && pg_restore --version
USER 10001

FROM alone
