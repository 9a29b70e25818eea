"""Whether the checkpoint can be served, in the shape that was asked for: read before anything is started."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engine.config import shapes, weight_files
from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig

if TYPE_CHECKING:
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.layout.shape import Shape


def refuse(args: ServerArgs) -> str:
    """Why not, naming the file, or flag and model figure with sizes that work; empty when it can."""
    path = Path(args.model_path)
    try:
        config = ModelConfig.from_dir(path)
        problem = shapes.refuse(args, partial(_misfit, config))
        if not problem:
            weight_files.check(path)
    except CheckpointError as error:
        return f"--model-path: {'; '.join(filter(None, (error.message, error.fix)))}"
    return problem


def _misfit(config: ModelConfig, shape: Shape) -> str:
    try:
        config.check_shape(shape)
    except CheckpointError as error:
        return error.message
    return ""
