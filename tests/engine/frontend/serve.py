"""`python -m tests.engine.frontend.serve <engine flags>`: the engine's real HTTP process in front of echo ranks."""

from __future__ import annotations

import sys

from pdctl.engine.__main__ import start

if __name__ == "__main__":
    sys.exit(start(sys.argv[1:], module="tests.engine.frontend.echo_scheduler"))
