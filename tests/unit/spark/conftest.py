from importlib.util import find_spec

# `make setup` goes without pyspark, `make spark` brings it; no JVM is needed here.
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]
