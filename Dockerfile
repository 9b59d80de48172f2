# The image that deploy/ names: scoreveil serve, in front of a model server or with a model inside.
#   docker build --tag scoreveil:0.1.0 .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG EXTRAS=serve,grpc,postgres,onnx,skops,traces
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[$EXTRAS]" \
    && rm -r /wheels \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin scoreveil \
    && install --directory --owner scoreveil --group scoreveil --mode 0700 /var/lib/scoreveil
# compiled kernels are kept here, for all workers; plain numpy answers until they are ready
ENV NUMBA_CACHE_DIR=/tmp/numba
USER 10001:10001
WORKDIR /var/lib/scoreveil
EXPOSE 8080 8081 9090
HEALTHCHECK --interval=10s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/v2/health/ready')"]
CMD ["scoreveil", "serve", "--config", "/etc/scoreveil/gateway.toml"]
