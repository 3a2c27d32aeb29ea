# The server, the console and the command line:  docker build -t slipstream .
# With Spark as well:                            docker build -t slipstream-spark --target spark .

FROM python:3.13-slim AS wheels
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[all]'

FROM python:3.13-slim AS server
# hadolint ignore=DL3013 # the only version in /wheels is the one that was built above
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links=/wheels 'slipstream-jetstream[all]' \
    && useradd --system --uid 1000 --home-dir /data --create-home slipstream
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 4222 8222
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
    CMD ["slipstream", "-s", "nats://127.0.0.1:4222", "server", "check", "connection"]
ENTRYPOINT ["slipstream"]
# Inside a container it must listen on all addresses; publish the ports on 127.0.0.1, or configure users first.
CMD ["server", "-a", "0.0.0.0", "-p", "4222", "-m", "8222", "-sd", "/data"]

FROM server AS spark
USER 0
# hadolint ignore=DL3008 # Debian keeps only the newest version of a package
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# hadolint ignore=DL3013 # the extra's bounds are those of the package
RUN pip install --no-cache-dir 'slipstream-jetstream[spark]'
USER 1000
HEALTHCHECK NONE
ENTRYPOINT []
CMD ["spark-class", "org.apache.spark.deploy.master.Master", "--host", "0.0.0.0", "--port", "7077"]

# The last one is what `docker build .` makes.
FROM server
