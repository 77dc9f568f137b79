# The daemon's image:                   docker build -t cdcd .
# The image of the Spark jobs:          docker build -t cdcd-spark --target spark .
#
# Where PyPI and Maven's central repository are reached in a way of one's own (in no layer of the result):
#   --build-arg HTTPS_PROXY=http://…       a proxy
#   --secret id=pip,src=pip.conf           a mirror of PyPI
#   --secret id=ivy,src=ivysettings.xml    a mirror of Maven's repository, for the jars of Spark
#   --secret id=ca,src=company.pem         certificates that pip and Java shall trust besides those of the base
#
# With the libraries for kafka.oauth.provider, otlp.endpoint and kafka.claim_check_store:
# --build-arg EXTRAS="msk azure otel s3"
#
# It runs with a read-only root file system and as any user: only /var/spool/cdcd is written to. The configuration is
# /etc/cdcd/cdcd.yaml; for probes and scrapes from outside it must say `http: {host: 0.0.0.0}`.

# Any Debian with Python 3.11 or newer, its venv module and ca-certificates will do; 13 or newer for the Spark jobs.
ARG BASE_IMAGE=docker.io/library/python:3.13.15-slim-trixie@sha256:ffb752e139c0a19692a43af8d8523b274222dd68eebad5d583b45c2201c6e30a


FROM ${BASE_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
# The compiler, and Python's headers where the base does not bring them.
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcc libc6-dev \
        $(python3 -c 'import os, sysconfig; print("" if os.path.exists(sysconfig.get_path("include") + "/Python.h") else "python3-dev")')
# What is trusted here: by pip, and further below, as Java wants it, by Ivy.
ENV PIP_CERT=/build-ca.pem
RUN --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    cat /etc/ssl/certs/ca-certificates.crt $(find /run/secrets -name ca.pem 2>/dev/null) > $PIP_CERT
# What is installed here has no pip of its own: the tools' one reaches over.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/cdcd
ARG EXTRAS=""
COPY requirements*.lock ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /tools/bin/pip install --require-hashes -r requirements-build.lock && \
    /tools/bin/pip --python /opt/cdcd/bin/python install --require-hashes --only-binary :all: -r requirements.lock && \
    for extra in $EXTRAS; do \
        /tools/bin/pip --python /opt/cdcd/bin/python install --require-hashes --only-binary :all: -r "requirements-$extra.lock" || exit 1; \
    done
COPY pyproject.toml setup.py README.md LICENSE ./
COPY config config
COPY deploy deploy
# A link in deploy/prometheus leads there.
COPY helm/cdcd/files/alerts.yaml helm/cdcd/files/alerts.yaml
COPY cdcd cdcd
RUN CDCD_COMPILE=1 /tools/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /dist . && \
    /tools/bin/pip --python /opt/cdcd/bin/python install --no-index --no-deps /dist/*.whl


FROM ${BASE_IMAGE} AS runtime
ENV PATH=/opt/cdcd/bin:$PATH \
    CDCD_CONFIG=/etc/cdcd/cdcd.yaml \
    TMPDIR=/var/spool/cdcd \
    PYTHONDONTWRITEBYTECODE=1
# libpq asks for the name of the user it runs as. Mode 1777, for a cluster that picks its own user.
RUN echo 'cdcd:x:10001:' >> /etc/group && \
    echo 'cdcd:x:10001:10001::/var/spool/cdcd:/usr/sbin/nologin' >> /etc/passwd && \
    install -d -m 1777 -o 10001 -g 10001 /var/spool/cdcd
VOLUME /var/spool/cdcd
USER 10001:10001
WORKDIR /var/spool/cdcd
ENTRYPOINT ["/opt/cdcd/bin/cdcd"]
ARG BASE_IMAGE
ARG VERSION=unknown
ARG REVISION=unknown
# Where the sources are published, such as https://git.example.com/data/cdcd.
ARG REPOSITORY=unknown
LABEL org.opencontainers.image.title="cdcd" \
      org.opencontainers.image.description="Committed PostgreSQL changes to Kafka, exactly once, in commit order" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.authors="The cdcd authors" \
      org.opencontainers.image.vendor="The cdcd authors" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.source="${REPOSITORY}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"


FROM builder AS spark-builder
# pyspark exists as a source archive only, and is built where setuptools is.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /tools/bin/pip wheel --require-hashes --no-build-isolation --wheel-dir /wheels -r requirements-spark.lock && \
    /tools/bin/pip --python /opt/cdcd/bin/python install --no-index --no-deps /wheels/*.whl


FROM spark-builder AS spark-jars
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends default-jre-headless openssl
# -jdktrust marks the certificates as ones that Java shall trust.
RUN --mount=type=secret,id=ivy,target=/run/secrets/ivysettings.xml \
    openssl pkcs12 -export -nokeys -jdktrust anyExtendedKeyUsage -in $PIP_CERT -out /build-ca.p12 -passout pass:public && \
    CDCD_CACHE=/opt/cdcd CDCD_IVY_SETTINGS=$(find /run/secrets -name ivysettings.xml 2>/dev/null) \
    JDK_JAVA_OPTIONS="-Djavax.net.ssl.trustStore=/build-ca.p12 -Djavax.net.ssl.trustStorePassword=public" \
        /opt/cdcd/bin/python -m cdcd.spark.jars


FROM runtime AS spark
USER 0:0
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends default-jre-headless procps && \
    rm -rf /var/lib/apt/lists/*
COPY --from=spark-jars /opt/cdcd /opt/cdcd
# The jars of Kafka's source and of the table formats are in /opt/cdcd/spark-jars. What Spark and Java write goes where
# something may be written. Java's threads share two heaps of the C library, instead of eight for each core.
ENV HOME=/var/spool/cdcd \
    MALLOC_ARENA_MAX=2 \
    CDCD_CACHE=/opt/cdcd \
    SPARK_LOCAL_DIRS=/var/spool/cdcd \
    JDK_JAVA_OPTIONS=-Djava.io.tmpdir=/var/spool/cdcd
USER 10001:10001
CMD ["mirror"]


FROM runtime AS daemon
COPY --from=builder /opt/cdcd /opt/cdcd
EXPOSE 9464
# With another http.port, or with HTTPS, set CDCD_HTTP__PORT and CDCD_HTTP__CERTIFICATE_FILE instead of the file's keys:
# they are read here too.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s CMD ["/opt/cdcd/bin/python", "-c", \
    "import os, ssl, urllib.request as http; has = os.environ.get; tls = has('CDCD_HTTP__CERTIFICATE_FILE'); http.urlopen(('https' if tls else 'http') + '://127.0.0.1:' + has('CDCD_HTTP__PORT', '9464') + '/healthz', timeout=4, context=ssl._create_unverified_context() if tls else None)"]
CMD ["run"]
