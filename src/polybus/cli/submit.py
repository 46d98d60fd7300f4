"""The file to give to spark-submit: `spark-submit [its options] FILE build --journal … --tables …`.

    spark-submit --master spark://HOST:7077 "$(python -m polybus.cli.submit)" build --data-dir var

spark-submit wants a path and knows no modules; called without it, this one prints its own.  What follows the
file are the arguments of `polybus pipeline`.  The master and everything else about Spark is what spark-submit
was told.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    here = Path(__file__).resolve()
    # Python puts the folder of a script in front of all others, and our modules there are no top-level ones.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here.parent]
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not sys.argv[1:]:
        print(here)
        return 0
    from polybus.cli.main import run

    return run(["pipeline", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
