"""Capture the loopback while a deployment runs: who got a room's HTTP request, and whose rank got its TransferInfo.

The capture is passive (AF_PACKET, needs root): it uses no log line and none of pdctl's own conclusions.
"""

from __future__ import annotations

import re
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field

ALL, OUTGOING = 0x0003, 4  # ETH_P_ALL; every loopback packet passes twice, once outgoing
PACKET, STATISTICS, FORCED_BUFFER = 263, 6, 33  # SOL_PACKET, PACKET_STATISTICS, SO_RCVBUFFORCE
DISCARD, TO_READ = 9, 60.0  # a port nobody listens on; seconds to read what is queued
BUFFER = 256 << 20  # bytes: large, because busy schedulers leave the capture little time
ROOM = re.compile(rb'"bootstrap_room": ?(\d+)')
TEXT = re.compile(rb"number (\d+)")
RANK = re.compile(rb'"rank_port": ?(\d+)')
ABORT = re.compile(rb"ABORT[^0-9]{1,16}\d+")  # the decode gives up a room, on the same socket
DIGITS = re.compile(rb"(?<!\d)\d{1,20}(?!\d)")


class CaptureError(Exception):
    """Packets cannot be captured, or some were missed, so the rest is no evidence."""


@dataclass(slots=True)
class Seen:
    """One room as seen on the wire."""

    number: int | None = None  # the number of the request it belongs to
    http: list[str] = field(default_factory=list)  # the instances that got its HTTP request
    contacted: list[str] = field(default_factory=list)  # the prefills whose rank got its TransferInfo


class Wire:
    """Captures the loopback from `start` to `stop`. `http` and `bootstrap`: port → instance."""

    def __init__(self, http: dict[int, str], bootstrap: dict[int, str]) -> None:
        self.rooms: dict[str, Seen] = {}
        self._http, self._bootstrap = http, bootstrap
        self._ranks: dict[int, str] = {}
        self._last = secrets.token_bytes(16)  # a datagram with these bytes is the last packet that is read
        self._thread = threading.Thread(target=self._read, daemon=True)
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
            self._socket.bind(("lo", ALL))
            self._socket.setsockopt(socket.SOL_SOCKET, FORCED_BUFFER, BUFFER)
        except PermissionError as error:
            raise CaptureError("the loopback can be captured by root only: run this as root") from error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> dict[str, Seen]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(self._last, ("127.0.0.1", DISCARD))
        self._thread.join(TO_READ)
        _, missed = struct.unpack("II", self._socket.getsockopt(PACKET, STATISTICS, 8))
        self._socket.close()
        if missed or self._thread.is_alive():
            raise CaptureError(f"{missed} packets were missed: record again on a quieter machine")
        return self.rooms

    def _read(self) -> None:
        """Read packets up to the marker datagram: they are queued in order, so all earlier ones are read by then."""
        while True:
            frame, address = self._socket.recvfrom(1 << 17)
            if address[2] == OUTGOING:
                continue
            if frame.endswith(self._last):
                return
            if parts := tcp(frame):
                self._take(*parts)

    def _take(self, port: int, data: bytes) -> None:
        if port in self._http:
            for room in ROOM.findall(data):
                seen = self.rooms.setdefault(room.decode(), Seen())
                seen.http.append(self._http[port])
                seen.number = int(found[1]) if (found := TEXT.search(data)) else seen.number
        elif port in self._bootstrap:
            self._ranks.update({int(rank): self._bootstrap[port] for rank in RANK.findall(data)})
        elif port in self._ranks:
            for word in DIGITS.findall(ABORT.sub(b"", data)):
                if (seen := self.rooms.get(word.decode())) is not None:  # type: ignore[assignment]
                    seen.contacted.append(self._ranks[port])


def tcp(frame: bytes) -> tuple[int, bytes] | None:
    """Destination port and payload of a TCP segment over IPv4, or None."""
    if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return None
    header = 14 + (frame[14] & 15) * 4
    length = 14 + int.from_bytes(frame[16:18], "big")
    data = frame[header + (frame[header + 12] >> 4) * 4 : length if length > header else None]
    return (int.from_bytes(frame[header + 2 : header + 4], "big"), data) if data else None
