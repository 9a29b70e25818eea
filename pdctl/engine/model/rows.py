"""Arithmetic on rows of hidden states that every kind of layer shares."""

from __future__ import annotations

import torch

from pdctl.engine.model.linear import FEWEST_ROWS


def bucket(count: int) -> int:
    """How many rows are multiplied for `count` of them: one of about sixty numbers below a thousand.

    oneDNN makes a kernel for every number of rows it meets and keeps a thousand of them. With prompts of every length
    that is a gigabyte within minutes, and a kernel to be made for most passes.
    """
    if count <= 8:
        return max(count, FEWEST_ROWS)
    step = 4 if count <= 64 else 16
    return -(-count // step) * step


def padded(rows: torch.Tensor) -> torch.Tensor:
    """`bucket` rows; those that are added mean nothing and are cut off at the end."""
    missing = bucket(rows.shape[0]) - rows.shape[0]
    return torch.constant_pad_nd(rows, (0, 0, 0, missing)) if missing > 0 else rows


def norm_floor(width: int, eps: float, device: torch.device) -> torch.Tensor:
    """What `unit_rows` takes for an RMS norm over `width` numbers."""
    return torch.tensor(width * eps, device=device)


def unit_rows(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """x / sqrt(|x|² + floor) per row: an RMS norm whose scale lives in the next matrix. Float32 inside.

    Not hypot: of squares, sums and roots IEEE 754 says every bit, whichever code computes them.
    """
    wide = x.float()
    return wide.div(torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().add_(floor).sqrt_()).to(x.dtype)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """In float32, the same bits wherever a number stands.

    torch's vector code and the scalar code for what a vector does not fill differ in the last bit, and which of them
    computes a number depends on how many rows there are. In float64 both round to the same float32.
    """
    return x.double().sigmoid_().float()


def rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate each adjacent pair in place (rope.py). The last dimension is dense; every stride is even."""
    pairs = heads.float().view(*heads.shape[:-1], -1, 2)
    torch.view_as_complex(pairs).mul_(rotation)
    if heads.dtype != torch.float32:
        heads.copy_(pairs.flatten(-2))
