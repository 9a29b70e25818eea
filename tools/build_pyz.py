"""`python -m tools.build_pyz OUT`: pdctl as one file for a Python that is there, 3.10 to 3.13 (docs/install.md)."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from tools.one_file.archive import installed, package, pinned, zipped

START = Path(__file__).with_name("one_file") / "start.py"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.build_pyz", description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write, such as pdctl.pyz")
    parser.add_argument(
        "--installed",
        action="store_true",
        help="take libraries as they are installed here, not the pinned ones: quick, but not the same bytes elsewhere",
    )
    args = parser.parse_args()
    libraries = installed() if args.installed else pinned()
    body = zipped({**libraries, **package(), "__main__.py": START.read_bytes()})
    args.out.write_bytes(b"#!/usr/bin/env python3\n" + body)
    args.out.chmod(0o755)
    whole = args.out.read_bytes()
    print(f"{args.out}: {len(whole) / 1e6:.1f} MB, sha256 {hashlib.sha256(whole).hexdigest()}")


if __name__ == "__main__":
    main()
