"""Which layers a pipeline stage holds; the last `layers % pp` hold one more (sglang 0.5.8, 0.5.23 get_pp_indices)."""

from __future__ import annotations


def stage_layers(layers: int, pp: int, stage: int) -> range:
    """The layers of stage `stage`. Raises ValueError where a stage would hold none."""
    if not 1 <= pp <= layers:
        raise ValueError(f"{layers} layers over {pp} pipeline stages: every stage needs at least one layer")
    share, more = divmod(layers, pp)
    short = pp - more  # stages before the longer ones
    first = stage * share + max(0, stage - short)
    return range(first, first + share + (stage >= short))
