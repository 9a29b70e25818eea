"""Sizes, times and bandwidths as people write them, to base units and back."""

from __future__ import annotations

import re

from pdctl.errors import UsageError
from pdctl.quick_definitions import compile_late

SIZES = {
    "TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10,
    "Ti": 1 << 40, "Gi": 1 << 30, "Mi": 1 << 20, "Ki": 1 << 10,  # Kubernetes' spelling
    "TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1,
}  # fmt: skip
RATES = {"Tbps": 10**12, "Gbps": 10**9, "Mbps": 10**6, "kbps": 10**3}
TIMES = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

SPELT = {  # what people write for a unit of time
    "d": "h", "day": "h", "days": "h", "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "msec": "ms", "millisecond": "ms", "milliseconds": "ms",
}  # fmt: skip

LONGEST = 500 * 3600.0  # seconds; poll(2) counts milliseconds in 32 bits, which end after 596 hours
LARGEST = 1 << 60  # bytes, or bits per second: more than any machine has

_QUANTITY = compile_late(r"(\d{1,99}(?:\.\d{1,9})?)\s*([A-Za-z/]*)", re.ASCII)
_TIME = compile_late(r"(\d{1,99}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)


class UnitError(ValueError):
    """A quantity that cannot be read; `fix` says what to write instead."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def parse_size(text: str) -> int:
    """Bytes of `80GiB`, `80Gi`, `80GB`."""
    number, unit = _split(text, "a size", "write a number and a unit, such as 80GiB or 80GB")
    if unit in SIZES:
        return _whole(number, SIZES[unit], text)
    if not unit:
        raise UnitError(f"{text} has no unit", f"write {text}GiB ({text} × 2³⁰ bytes) or {text}GB ({text} × 10⁹ bytes)")
    if unit.endswith("b") and len(unit) > 1 and unit[:-1] + "B" in SIZES:
        raise UnitError(
            f"{unit} counts bits, a size is in bytes", f"write {number}{unit[:-1]}B if you mean {unit[:-1]}B"
        )
    raise UnitError(f"no unit of size is called {unit}", _respelt(number, unit, SIZES))


def parse_rate(text: str) -> int:
    """Bits per second of `400Gbps`."""
    number, unit = _split(text, "a bandwidth", "write a number and a unit, such as 400Gbps")
    unit = {"Tb/s": "Tbps", "Gb/s": "Gbps", "Mb/s": "Mbps"}.get(unit, unit)
    if unit in RATES:
        return _whole(number, RATES[unit], text)
    if not unit:
        raise UnitError(f"{text} has no unit", f"write {text}Gbps ({text} × 10⁹ bits per second)")
    if unit in ("GBps", "GB/s", "MBps", "MB/s"):
        bits = f"{float(number) * 8:g}{unit[0]}bps"
        raise UnitError(f"{unit} counts bytes, a bandwidth is in bits", f"write {bits}, which is {text}")
    raise UnitError(f"no unit of bandwidth is called {unit}", _respelt(number, unit, RATES))


def parse_duration(text: str, longest: float = LONGEST) -> float:
    """Seconds of `90s`, `1h30m`, `250ms`; at most `longest`."""
    parts = _TIME.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        units = [unit for _, unit in parts]
        if units == [unit for unit in TIMES if unit in units]:
            seconds = sum(float(number) * TIMES[unit] for number, unit in parts)
            if seconds <= longest:
                return seconds
            most = format_duration(longest)
            raise UnitError(f"this is more than {most}", f"write at most {most}")
        raise UnitError("units go from large to small, each once", "write hours, minutes, seconds: 1h30m, 2m30s")
    number, unit = _split(text, "a time", "write numbers with the units h, m, s or ms: 30m, 1h30m, 250ms")
    if not unit:
        raise UnitError(f"{text} has no unit", f"write {text}s for seconds or {text}m for minutes")
    days = 24 if unit.lower().startswith("d") else 1
    meant = SPELT.get(unit.lower(), "")
    fix = f"write {float(number) * days:g}{meant}" if meant else _respelt(number, unit, TIMES)
    raise UnitError(f"no unit of time is called {unit}", fix)


def flag_seconds(flag: str, text: str, *, positive: bool = False, ago: float | None = None) -> float:
    """As parse_duration, of a flag's value. Raise UsageError, which names the flag, also for 0 if `positive`.

    `ago`: the value may have a sign, which says that it lies back; it is at most that many seconds.
    """
    unsigned = text if ago is None else text.removeprefix("-")
    try:
        seconds = parse_duration(unsigned, LONGEST if ago is None else ago)
        if positive and not seconds:
            raise UnitError("this is no time at all", "write a time above 0, such as 5s")
        return seconds
    except UnitError as error:
        # The fix is to be typed with the sign, as the value was.
        fix = error.fix if unsigned == text else re.sub(r"(?<![\w.])(?=\d)", "-", error.fix)
        raise UsageError(f"{flag} {text}: {error}", fix) from None


def format_size(size: int) -> str:
    """The shortest exact spelling: `80GiB`, `48GB`, `123B`."""
    return _exact(size, [(unit, SIZES[unit]) for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB")], "B")


def format_rate(rate: int) -> str:
    return _exact(rate, [(unit, RATES[unit]) for unit in RATES if rate % RATES[unit] == 0], "bps")


def format_duration(seconds: float) -> str:
    """`1h30m`, `1.5s`, `90ms`; to the millisecond."""
    left = round(seconds * 1000)
    if left < 1000:
        return f"{left}ms"
    hours, left = divmod(left, 3_600_000)
    minutes, left = divmod(left, 60_000)
    parts = ((f"{hours}h", hours), (f"{minutes}m", minutes), (f"{left / 1000:g}s", left))
    return "".join(text for text, count in parts if count)


def _split(text: str, what: str, fix: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise UnitError(f"this is not {what}", fix)
    return match[1], match[2]


def _whole(number: str, factor: int, text: str) -> int:
    whole, _, decimals = number.partition(".")
    scale: int = 10 ** len(decimals)
    value, rest = divmod(int(whole + decimals) * factor, scale)
    if rest or not value:
        raise UnitError(f"{text} is not a whole number of bits or bytes above 0", "write a larger or rounder number")
    if value > LARGEST:
        raise UnitError(f"{text} is more than any machine has", "write a smaller number")
    return value


def _respelt(number: str, unit: str, known: dict[str, float] | dict[str, int]) -> str:
    """A unit in the wrong case or cut short gets its right spelling, anything else the list."""
    folded = unit.lower()
    near = [name for name in known if name.lower() == folded] or [
        name for name in known if len(name) > 1 and name.lower().startswith(folded[:1])
    ]
    return f"write {' or '.join(number + name for name in near[:2])}" if near else f"units are {', '.join(known)}"


def _exact(value: int, units: list[tuple[str, int]], base: str) -> str:
    fitting = [(value // size, unit) for unit, size in units if value % size == 0]
    count, unit = min(fitting, default=(value, base))
    return f"{count}{unit}"
