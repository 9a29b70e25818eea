"""`python -m tools.read_release VERSION`: read a release's wheel into the tables, and print what changed."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.read_release import environment, flags, logs, records, surface
from tools.read_release.review import review
from tools.read_release.tables import merge, versions_of
from tools.read_release.wheel import UnreadableError, download, open_wheel

if TYPE_CHECKING:
    from tools.read_release.tables import Row
    from tools.read_release.wheel import Wheel

PACKAGES = ("sglang", "sglang-router", "smg")
LAUNCHERS = {"sglang-router": "sglang_router", "smg": "smg"}


def read(wheel: Wheel) -> tuple[dict[str, list[Row]], list[str]]:
    """Kind → items of the release, and what could not be determined, one sentence each."""
    if wheel.package == "sglang":
        found = flags.read(wheel)
        return {
            "flags": list(found.flags),
            "environment": list(environment.read(wheel)),
            "routes": list(surface.routes(wheel)),
            "metrics": list(surface.metrics(wheel)),
            "records": list(records.read(wheel)),
            "logs": list(logs.read(wheel)),
        }, list(found.doubts)
    found = flags.read_router(wheel, LAUNCHERS[wheel.package])
    return {"flags": list(found.flags)}, list(found.doubts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.read_release", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a release, or the path of its wheel")
    parser.add_argument("--package", choices=PACKAGES, default="sglang")
    parser.add_argument("--downloads", type=Path, help="where wheels are kept (default: a temporary directory)")
    parser.add_argument("--quiet", action="store_true", help="count the changes instead of listing them")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="read-release-") as scratch:
        for text in given.versions:
            try:
                path = Path(text)
                if path.suffix != ".whl":
                    path = download(given.package, text, given.downloads or Path(scratch))
                wheel = open_wheel(path)
                if wheel.package not in PACKAGES:
                    raise UnreadableError(f"{path.name}: {wheel.package} is none of {', '.join(PACKAGES)}")
                found, doubts = read(wheel)
            except UnreadableError as error:
                print(f"read_release: {error}", file=sys.stderr)
                return 2
            changes = merge(wheel, found)
            review(wheel, versions_of(wheel.package), changes, doubts, given.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
