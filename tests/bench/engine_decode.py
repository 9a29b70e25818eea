"""Decode and prefill of the embedded engine next to transformers: same weights, same threads, steps interleaved.

    python tests/bench/engine_decode.py                       # t4 and t8, batch 1, 8 and 32
    python tests/bench/engine_decode.py --shapes t4 --batches 1 --rounds 100 --layout page-major
    python tests/bench/engine_decode.py --shapes t8 --context 2048 --window 256     # sliding windows in every layer

A ratio is transformers' median time divided by ours: above 1 the engine is faster. Each round takes one step of each,
so that a busy machine slows both alike; with one thread the time is that thread's CPU time, and waiting does not count.
"""

from __future__ import annotations

import os

from pdctl.engine.scheduler.__main__ import prefer_huge_pages

prefer_huge_pages(os.environ)  # as a scheduler rank does; transformers profits alike

import argparse  # noqa: E402 (torch must not be imported before)
import statistics  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import (  # noqa: E402
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from pdctl.engine.config.checkpoint_config import ModelConfig  # noqa: E402
from pdctl.engine.kvcache.kv_pool import KVPool  # noqa: E402
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice  # noqa: E402
from pdctl.engine.model.model_runner import ModelRunner  # noqa: E402
from pdctl.engine.model.parallel import Groups  # noqa: E402

SHAPES = {
    "t4": {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 768, "heads": (4, 2), "vocab_size": 4096},
    "t8": {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1408, "heads": (8, 4), "vocab_size": 4096},
}
PAGE = 16
Clock = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=256, help="tokens in the cache before the first step")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--window", type=int, default=0, help="tokens a layer looks back; 0: everything")
    parser.add_argument("--layout", default="layer-major", choices=["layer-major", "page-major", "head-major"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    print(f"torch {torch.__version__}, {args.threads} thread(s), {args.layout}, context {args.context}")
    print(f"medians in ms of {clock.__name__}")
    print(f"{'shape':6}{'work':>14}{'transformers':>14}{'engine':>10}{'ratio':>8}{'max |Δlogit|':>14}")
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as directory:
            peer = make_model(shape, Path(directory), args.window)
            for batch in args.batches:
                report(shape, f"decode x{batch}", *decode(peer, directory, batch, args, clock))
            report(shape, f"prefill {args.context}", *prefill(peer, directory, args, clock))


def make_model(shape: str, directory: Path, window: int = 0) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = dict(SHAPES[shape])
    heads, kv_heads = sizes.pop("heads")
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 64}
    sizes["max_position_embeddings"] = 4096
    if window:
        model = MistralForCausalLM(MistralConfig(sliding_window=window, **sizes)).eval()
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    model.save_pretrained(directory)
    return model


def make_runner(directory: str, seqs: int, tokens: int, layout: str) -> tuple[ModelRunner, list[np.ndarray]]:
    """A runner, and one run of pages per sequence."""
    config = ModelConfig.from_dir(directory)
    each = -(-tokens // PAGE)
    geometry = KVPool.geometry_for(config, 1, PAGE, 1 + seqs * each, torch.float32, layout)
    runner = ModelRunner(config, directory, KVPool(geometry), Groups.single())
    return runner, list(np.arange(1, 1 + seqs * each, dtype=np.int32).reshape(seqs, each))


def decode(
    peer: PreTrainedModel, directory: str, batch: int, args: argparse.Namespace, clock: Clock
) -> tuple[list, list, float]:
    """Both start from the same prompt and are fed the same tokens; the context grows by one each round."""
    warmup = 3
    runner, pages = make_runner(directory, batch, args.context + args.rounds + warmup, args.layout)
    prompts = torch.randint(0, peer.config.vocab_size, (batch, args.context))
    theirs, ours, worst = [], [], 0.0
    with torch.inference_mode():
        cache = DynamicCache(config=peer.config)
        first = peer(input_ids=prompts, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        for prompt, own in zip(prompts, pages, strict=True):
            runner.forward(ForwardBatch(prompt.numpy(), [SeqSlice(own, 0, args.context)]))
        tokens = first.argmax(-1)
        for step in range(args.rounds + warmup):
            length = args.context + step
            expected, their_time = timed(
                lambda now=tokens: peer(input_ids=now[:, None], past_key_values=cache, use_cache=True).logits[:, -1],
                clock,
            )
            work = ForwardBatch(tokens.numpy(), [SeqSlice(own, length, 1) for own in pages])
            got, our_time = timed(lambda work=work: runner.forward(work), clock)
            worst = max(worst, float((got - expected).abs().max()))
            tokens = expected.argmax(-1)
            if step >= warmup:
                theirs.append(their_time)
                ours.append(our_time)
    return theirs, ours, worst


def prefill(peer: PreTrainedModel, directory: str, args: argparse.Namespace, clock: Clock) -> tuple[list, list, float]:
    runner, (pages, *_) = make_runner(directory, 1, args.context, args.layout)
    prompt = torch.randint(0, peer.config.vocab_size, (1, args.context))
    work = ForwardBatch(prompt[0].numpy(), [SeqSlice(pages, 0, args.context)])
    theirs, ours, worst = [], [], 0.0
    with torch.inference_mode():
        for step in range(args.rounds // 2 + 2):
            expected, their_time = timed(
                lambda: peer(input_ids=prompt, use_cache=True, logits_to_keep=1).logits[:, -1], clock
            )
            got, our_time = timed(lambda: runner.forward(work), clock)
            worst = max(worst, float((got - expected).abs().max()))
            if step >= 2:
                theirs.append(their_time)
                ours.append(our_time)
    return theirs, ours, worst


def timed(call: Callable[[], torch.Tensor], clock: Clock) -> tuple[torch.Tensor, float]:
    start = clock()
    result = call()
    return result, (clock() - start) * 1e3


def report(shape: str, work: str, theirs: list[float], ours: list[float], worst: float) -> None:
    them, us = statistics.median(theirs), statistics.median(ours)
    print(f"{shape:6}{work:>14}{them:14.2f}{us:10.2f}{them / us:8.2f}{worst:14.1e}")


if __name__ == "__main__":
    main()
