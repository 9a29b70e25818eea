"""`python -m tests.soak --minutes 20`: launch, ask, kill, count; exit 1 when anything is not as it should be."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from tests.soak.plan import Plan
from tests.soak.soak import run


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--report", type=Path, default=Path("soak.json"), help="JSON report (default: %(default)s)")
    parser.add_argument("--home", type=Path, help="keep logs here (default: a temporary directory)")
    for field in dataclasses.fields(Plan):
        if field.name != "seconds":
            name = "--" + field.name.replace("_", "-")
            parser.add_argument(name, type=type(field.default), default=field.default, help="default: %(default)s")
    given = vars(parser.parse_args(argv))
    minutes, report, home = given.pop("minutes"), given.pop("report"), given.pop("home")
    outcome = run(Plan(seconds=minutes * 60, **given), home, say=lambda text: print(text, flush=True))
    report.write_text(outcome.as_json(), encoding="utf-8")
    print(f"\n{outcome.summary}\nreport: {report}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
