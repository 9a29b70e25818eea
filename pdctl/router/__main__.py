"""`python -m pdctl.router`: parse the command line, tie the process to its starter, run."""

from __future__ import annotations

import sys

from pdctl import lifeline
from pdctl.errors import PdctlError
from pdctl.router import log, router_args
from pdctl.router.router_process import run


def main() -> int:
    chosen = router_args.parse(sys.argv[1:])
    lifeline.hold()
    log.configure(chosen.log_level)
    try:
        return run(chosen)
    except PdctlError as error:
        log.logger.error("%s; %s", error.message, error.fix)
        return int(error.exit_code)


if __name__ == "__main__":
    raise SystemExit(main())
