# Sayso with everything it may need, in /opt/sayso. The bot (sayso.yaml, tools) is mounted at /etc/sayso, or copied there
# by an image of your own; what outlives a restart is in /var/lib/sayso.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY deploy/requirements-build.txt deploy/requirements.txt deploy/
RUN python -m pip install --no-cache-dir --require-hashes -r deploy/requirements-build.txt
ENV UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/opt/sayso
RUN python -m venv --without-pip /opt/sayso \
 && uv pip install --require-hashes --no-deps -r deploy/requirements.txt
COPY . .
RUN uv build --wheel --no-build-isolation --python "$(command -v python)" --out-dir dist \
 && uv pip install --no-deps dist/*.whl \
 && uv pip check

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="Sayso" \
      org.opencontainers.image.description="Chat bots whose tools wait for the user's approval" \
      org.opencontainers.image.licenses="MIT"
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/sayso --no-create-home sayso \
 && install --directory --owner=sayso --group=sayso --mode=0700 /var/lib/sayso
COPY --from=build /opt/sayso /opt/sayso
ENV PATH=/opt/sayso/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib \
    SAYSO_CONFIG=/etc/sayso/sayso.yaml SAYSO_DATA=/var/lib/sayso
WORKDIR /etc/sayso
USER 10001:10001
VOLUME /var/lib/sayso
EXPOSE 8000
# The web's. Workers and the poller have no port: turn it off for them.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-I", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["sayso"]
CMD ["web", "--host", "0.0.0.0", "--port", "8000", "--processes", "2"]
