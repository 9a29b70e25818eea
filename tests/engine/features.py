"""Features of a processor that a process can be told not to find, so that libraries choose other kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

# What each library is told: torch's own loops, oneDNN's kernels (from the oldest on), MKL's.
FEATURES: tuple[dict[str, str], ...] = (
    {},
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
)
UNTOUCHED = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def lacks(features: dict[str, str]) -> str:
    """Why this processor cannot be made to have `features`; empty where it can."""
    wanted, has = features.get("ATEN_CPU_CAPABILITY", "default"), torch.backends.cpu.get_cpu_capability()
    known = ("DEFAULT", "AVX2", "AVX512")
    if not has.startswith(known):
        return f"torch's loops are built for {has} here: nothing to choose from" if features else ""
    best = max(place for place, name in enumerate(known) if has.startswith(name))
    return f"this processor has {has}, not {wanted}" if known.index(wanted.upper()) > best else ""


def environment(features: Mapping[str, str]) -> dict[str, str]:
    """This process's, with `features` instead of what somebody may have set."""
    # Threads that wait do not keep the others from a core: 4 of them are tried wherever this runs.
    return {name: value for name, value in os.environ.items() if name not in UNTOUCHED} | {
        "OMP_WAIT_POLICY": "passive",
        **features,
    }
