"""What `pdctl launch` adds to the log of a process it watches, whatever engine that is (pdctl/launch/process.py)."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.sign import Sign

# Spoken as SGLang's, which pdctl's own engine speaks too: both kinds of engine are launched.
ROWS = (
    # Words of launch/ending_reasons.py.
    Row(
        "process-killed-on-order", Speaker.SGLANG, Level.INFO, "", b" was killed by SIG",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was killed by (?P<signal>SIG\w+) "
        r"\((?:pdctl ended it|its own: it was asked to leave)\)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 was killed by SIGKILL (pdctl ended it)",
        proves=(Sign.ORDERED_TO_END,),
    ),
    Row(
        "process-killed", Speaker.SGLANG, Level.ERROR, "", b" was killed by SIG",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was killed by (?P<signal>SIG\w+)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 was killed by SIGKILL (from outside, or OOM-killed: see "
        "dmesg)",
        proves=(Sign.DIED,),
    ),
    Row(
        "process-lost", Speaker.SGLANG, Level.ERROR, "", b" was lost ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) was lost (?P<reason>.+)",
        "[2026-11-21 19:44:33] pdctl: decode-0-node1 generation 1 was lost with its node n3 (DOWN+NOT_RESPONDING)",
        proves=(Sign.DIED,),
    ),
    Row(
        "process-left", Speaker.SGLANG, Level.INFO, "", b" left with exit code ",
        r"pdctl: (?P<instance>\S+) generation (?P<generation>\d+) left with exit code (?P<code>\d+)",
        "[2026-11-21 19:44:33] pdctl: decode-0 generation 1 left with exit code 0",
    ),
)  # fmt: skip
