"""What a plan took for granted, in sentences: everything a reader should check against the real machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.workload import ISL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.deployment import Deployment


def assumed(deployment: Deployment) -> tuple[str, ...]:
    return (*_places(deployment), *_model(deployment), *_traffic(deployment))


def _places(deployment: Deployment) -> Iterator[str]:
    if deployment.target == "pools" and deployment.router is not None:
        yield "hosts of a pool are alike and empty; they are filled in order"
    traceable = all(case.side.serving.traceable for case in deployment.cases)
    if deployment.engine == "sglang" and deployment.router is not None and traceable:
        yield "servers log every request with its room and publish metrics; engine.traceable: false leaves that out"
    if deployment.engine == "sglang" and any(case.side.shape.deepep for case in deployment.cases):
        yield "the DeepEP all-to-all makes ep_size equal to tp_size"


def _model(deployment: Deployment) -> Iterator[str]:
    model = deployment.model
    if model is None:
        if deployment.mla is None and len(deployment.cases) == 2:
            yield "no model given, so GQA or MHA: under MLA one prefill rank sends, the others are dummies"
        return
    yield "weights are a lower bound: workspaces, CUDA graphs and absorbed MLA copies come on top"
    fractions = sorted(
        {case.budget.mem_fraction for case in deployment.cases if case.side.serving.mem_fraction is None}
    )
    if any(case.budget.gpu_memory for case in deployment.cases) and fractions:
        yield f"mem-fraction {fractions[0]:g} where none is given; SGLang derives its own from the GPU"
    pages = {case.budget.page_size for case in deployment.cases if case.side.serving.page_size is None}
    if pages:
        yield f"page-size {', '.join(map(str, sorted(pages)))} where none is given"
    widths = {case.budget.kv_bytes for case in deployment.cases}
    yield f"KV elements of {', '.join(map(str, sorted(widths)))} bytes"
    if model.sliding_layers:
        yield f"the {len(model.sliding_layers)} sliding-window layers are counted as if they kept every token"


def _traffic(deployment: Deployment) -> Iterator[str]:
    if deployment.model is None or len(deployment.cases) < 2:
        return
    if not deployment.workload.isl:
        yield f"a prompt of {ISL:,} tokens, as no workload is given"
    if any(case.nic is not None for case in deployment.cases):
        yield "KV moves at 80 % of line rate, over the NICs of the ranks that hold the request"
