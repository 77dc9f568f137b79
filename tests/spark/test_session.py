"""The session of the mirror, in a process of its own, because a process has one Java."""

import subprocess
import sys

from cdcd.mirror.jars import ICEBERG
from deploy.demo.mirrored import environment
from deploy.local.cache import REPOSITORY

SECRETS = {
    "spark.sql.catalog.lake.jdbc.password": "catalog-sesame-1",
    "spark.hadoop.fs.s3a.secret.key": "bucket-sesame-2",
    "spark.ssl.keyPassword": "key-sesame-3",
}

OWN = "--conf spark.mine=kept pyspark-shell"

PROGRAM = f"""
import os
from pathlib import Path
from cdcd.mirror.session import session
secrets = {SECRETS!r}
spark = session(({ICEBERG!r},), conf={{**secrets, "spark.driver.memory": "700m"}}, kafka=False)
arguments = b"".join(file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline"))
context = spark.sparkContext
print("ARGUMENTS", [name for name, secret in secrets.items() if secret.encode() in arguments], b"-Xmx700m" in arguments)
print("SQL", spark.conf.get("spark.sql.catalog.lake.jdbc.password"))
print("HADOOP", context._jsc.hadoopConfiguration().get("fs.s3a.secret.key"))
print("SPARK", context.getConf().get("spark.ssl.keyPassword"), spark.conf.get("spark.sql.caseSensitive"))
print("OWN", context.getConf().get("spark.mine"), os.environ["PYSPARK_SUBMIT_ARGS"])
spark.stop()
"""


def test_no_user_of_the_machine_reads_the_secrets_of_the_session_among_the_arguments_of_java() -> None:
    # The program is read from a pipe, because its own arguments would hold the secrets.
    done = subprocess.run(
        [sys.executable, "-"],
        input=PROGRAM,
        env={**environment(), "PYSPARK_SUBMIT_ARGS": OWN},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert "ARGUMENTS [] True" in said
    assert "SQL catalog-sesame-1" in said
    assert "HADOOP bucket-sesame-2" in said
    assert "SPARK key-sesame-3 true" in said
    # The arguments that a user gives to Java count too.
    assert f"OWN kept {OWN}" in said
