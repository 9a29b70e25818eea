"""Matrix products with a checkpoint's weights, in the form that is fastest on the device, and operations on rows.

On a CPU with oneDNN the weights are packed once at load. Compared with torch.mm, with weights that come from memory,
that is 1.6 to 1.9 times as fast at 8 to 32 rows and 1.1 times at 256 (docs/performance.md).

A row's product must not depend on how many rows share it, nor on the number of threads: the batch a request is in must
not change its answer. The library chooses, on each processor, which kernel multiplies a given number of rows, and
whether it adds in the same order as the others. So this is tested (CheckedLinear), not assumed.

Products use all threads; everything else in a pass uses one. When torch splits an operation among threads, vector code
computes a number in one split and the scalar code for a vector's remainder in another; and attention gives each thread
a scratch area at a different address, from which MKL multiplies in another order. With one thread, a row comes out the
same whatever is beside it. Products are most of a pass, and are checked.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

# Callers pad to this many rows: oneDNN's kernel for a single row adds in another order if a weight is wide; from two
# rows on, the order is mostly the same for any number. More padding costs time (4 rows take 1.1 times as long as 2).
FEWEST_ROWS = 2
LEAST_TRIED = 256  # at least this many numbers must agree before two kernels count as adding in the same order


class Linear(Protocol):
    """A weight [out, in], perhaps with a bias, by which rows [n, in] are multiplied; n is at least FEWEST_ROWS."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows @ weight.T + bias: [n, out]."""

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return residual + rows @ weight.T + bias."""


def make_linear(
    weight: torch.Tensor, dtype: torch.dtype, device: torch.device, bias: torch.Tensor | None = None
) -> Linear:
    """Place `weight` for products with `dtype` rows on `device`; `weight` itself can be freed afterwards."""
    weight = weight.to(device=device, dtype=dtype)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    if device.type != "cpu":
        return PlainLinear(weight, bias)
    return CheckedLinear((PackedLinear if can_pack(dtype) else PlainLinear)(weight, bias))


class CheckedLinear:
    """A product on a CPU in which the bits of a row depend on that row alone.

    The reference is the row among FEWEST_ROWS rows, multiplied by one thread. When a shape is first multiplied with
    another number of rows, or by several threads, the product of equal rows is compared with the reference, bit for
    bit; that suffices because the order in which a kernel adds does not depend on the numbers. If they differ, one
    thread is tried, then half as many rows at a time. So two processes on one machine agree, whatever number of threads
    each has. The check costs about one more product for each number of rows, once per process.
    """

    def __init__(self, linear: PackedLinear | PlainLinear) -> None:
        self._linear = linear
        self._kind = (type(linear), linear.out_width, linear.in_width, linear.dtype)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        count, threads = rows.shape[0], many()
        fit = _FITTING.get((*self._kind, count, threads))
        if fit is None:
            fit = self._fitting(count, threads)
        size, threads = fit
        with using(threads):
            if size == count:
                return self._linear.product(rows)
            # Copy each piece: a BLAS may add in another order if memory begins at another alignment.
            pieces = [self._linear.product(_padded(rows[at : at + size], size)) for at in range(0, count, size)]
        return torch.cat(pieces)[:count]

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.product(rows).add_(residual)

    def _fitting(self, count: int, threads: int) -> Fitting:
        """Return how many of `count` rows to multiply at a time, and with how many threads."""
        key, size, wanted = (*self._kind, count, threads), count, threads
        while not self._agrees(size, threads):
            if threads > 1:
                threads = 1
            elif size > FEWEST_ROWS:
                size, threads = max(FEWEST_ROWS, size // 2), wanted
            else:
                break  # this is the reference itself
        if (size, threads) != (count, wanted):
            log.info(
                "a product of %d rows with a weight of %d x %d by %d thread(s) adds in another order here than one of "
                "%d rows: multiplied %d rows at a time by %d thread(s)",
                *(count, self._linear.out_width, self._linear.in_width, wanted, FEWEST_ROWS, size, threads),
            )
        found = (size, threads)
        _FITTING[key] = found
        return found

    def _agrees(self, size: int, threads: int) -> bool:
        linear = self._linear
        generator = torch.Generator().manual_seed(size)
        for _ in range(-(-LEAST_TRIED // linear.out_width)):
            row = torch.randn(1, linear.in_width, generator=generator).to(linear.dtype)
            with using(1):
                expected = linear.product(row.repeat(FEWEST_ROWS, 1))[:1]
            with using(threads):
                got = linear.product(row.repeat(size, 1))
            if not torch.equal(got, expected.expand_as(got)):
                return False
        return True


Fitting = tuple[int, int]  # rows at a time, threads
_FITTING: dict[tuple[type, int, int, torch.dtype, int, int], Fitting] = {}  # by kind of weight, rows and threads


def _padded(rows: torch.Tensor, size: int) -> torch.Tensor:
    missing = size - rows.shape[0]
    return torch.constant_pad_nd(rows, (0, 0, 0, missing)) if missing else rows.clone()


class PlainLinear:
    """Transposed, [in, out]: every BLAS measured multiplies few rows faster that way."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_width, self.in_width = weight.shape
        self.dtype = weight.dtype
        self._weight = weight.t().contiguous()
        self._bias = bias

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        if self._bias is None:
            return rows @ self._weight
        return torch.addmm(self._bias, rows, self._weight)

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        result = torch.addmm(residual, rows, self._weight)
        return result if self._bias is None else result.add_(self._bias)


class PackedLinear:
    """In oneDNN's own blocked order, using the operators torch.compile uses for frozen weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_width, self.in_width = weight.shape
        self.dtype = weight.dtype
        self._weight = _onednn()._reorder_linear_weight(weight.contiguous())
        self._bias = bias
        self._product = _onednn()._linear_pointwise.default
        self._add = _onednn()._linear_pointwise.binary

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._product(rows, self._weight, self._bias, "none", [], "")
        return result

    def add_product(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._add(rows, residual, self._weight, self._bias, "add")
        return result


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this build of torch packs weights for oneDNN and multiplies correctly: tested, not guessed."""
    weight = torch.linspace(-1, 1, 24 * 16).view(24, 16).to(dtype)
    rows = torch.linspace(-1, 1, 3 * 16).view(3, 16).to(dtype)
    residual = torch.ones(3, 24, dtype=dtype)
    try:
        with torch.inference_mode():
            got = PackedLinear(weight, None).add_product(residual, rows)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = F.linear(rows.float(), weight.float()) + 1
    return torch.allclose(got.float(), expected, rtol=0.02, atol=0.02)


def _onednn() -> Any:  # noqa: ANN401 (operators registered at run time)
    return torch.ops.mkldnn


def bucket(count: int) -> int:
    """Return how many rows to multiply for `count` of them: one of about sixty numbers below a thousand.

    oneDNN compiles a kernel for every number of rows it meets and keeps a thousand of them. With prompts of every
    length that would take a gigabyte within minutes, and a kernel would be compiled for most passes.
    """
    if count <= 8:
        return max(count, FEWEST_ROWS)
    step = 4 if count <= 64 else 16
    return -(-count // step) * step


def padded(rows: torch.Tensor) -> torch.Tensor:
    """Pad to `bucket` rows; the added rows mean nothing and are cut off at the end."""
    missing = bucket(rows.shape[0]) - rows.shape[0]
    return torch.constant_pad_nd(rows, (0, 0, 0, missing)) if missing > 0 else rows


def norm_floor(width: int, eps: float, device: torch.device) -> torch.Tensor:
    """Return the `floor` with which `unit_rows` computes an RMS norm over `width` numbers."""
    return torch.tensor(width * eps, device=device)


def unit_rows(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return x / sqrt(|x|² + floor) per row: an RMS norm whose scale is in the next matrix. Float32 inside.

    Not hypot: for squares, sums and roots IEEE 754 defines every bit, whichever code computes them.
    """
    wide = x.float()
    return wide.div(torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().add_(floor).sqrt_()).to(x.dtype)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute in float64, return float32: the same bits wherever a number is in the tensor.

    torch's vector code and the scalar code for a vector's remainder differ in the last bit, and the number of rows
    decides which of them computes a number. From float64, both round to the same float32.
    """
    return x.double().sigmoid_().float()


def rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate each adjacent pair in place (attention_layer.py). The last dimension is dense; every stride is even."""
    pairs = heads.float().view(*heads.shape[:-1], -1, 2)
    torch.view_as_complex(pairs).mul_(rotation)
    if heads.dtype != torch.float32:
        heads.copy_(pairs.flatten(-2))


_own = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the calling thread's operations on that thread alone, except those under `using(many())`."""
    before = torch.get_num_threads()
    outer = getattr(_own, "many", None)
    _own.many = outer or before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _own.many = outer


def many() -> int:
    """Return how many threads the calling thread may use for a product."""
    return getattr(_own, "many", None) or torch.get_num_threads()


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Set torch's thread count inside the block and restore it afterwards; takes half a microsecond."""
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
