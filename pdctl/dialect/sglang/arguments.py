"""Every flag of `python -m sglang.launch_server`, release by release, and what became of those that are gone.

Read from the argparse of sglang 0.5.3, 0.5.8, 0.5.13, 0.5.18 and 0.5.23. Behind a name: `=` it takes a value, `=*` one
or more, `=?` at most one, nothing: it stands alone.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from pdctl.dialect.versions import V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Release, Span, Version, spell


class Argument(NamedTuple):
    """takes: "" no value, "=" one, "=*" one or more, "=?" one or none."""

    name: str
    takes: str
    span: Span


class Gap(NamedTuple):
    """A flag a release does not have. `instead`: what it has, or "". `sure` False: only a neighbour was read."""

    why: str
    instead: str
    sure: bool


# A flag's nearest successor, where there is one: the flag, or the words to write instead.
SUCCESSORS: dict[str, str] = {
    "collect-tokens-histogram": "enable-metrics",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "dsa-prefill-cp-mode": "cp-strategy",
    "elastic-ep-rejoin": "elastic-ep-join-mode: recover",
    "enable-deepep-moe": "moe-a2a-backend: deepep",
    "enable-dsa-prefill-context-parallel": "enable-prefill-cp",
    "enable-ep-moe": "the key `ep`",
    "enable-expert-distribution-metrics": "expert-balancedness-report-mode",
    "enable-flashinfer-cutedsl-moe": "moe-runner-backend: flashinfer_cutedsl",
    "enable-flashinfer-cutlass-moe": "moe-runner-backend: flashinfer_cutlass",
    "enable-flashinfer-mxfp4-moe": "moe-runner-backend: flashinfer_mxfp4",
    "enable-flashinfer-trtllm-moe": "moe-runner-backend: flashinfer_trtllm",
    "enable-gdn-replayssm-spec": "enable-linear-replayssm-spec",
    "enable-nsa-prefill-context-parallel": "enable-prefill-cp",
    "enable-prefill-context-parallel": "enable-prefill-cp",
    "enable-triton-kernel-moe": "moe-runner-backend: triton_kernel",
    "enforce-piecewise-cuda-graph": "cuda-graph-backend-prefill: tc_piecewise",
    "hybrid-kvcache-ratio": "swa-full-tokens-ratio",
    "keep-mm-feature-on-device": "mm-feature-transport: cuda_ipc",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "max-micro-batch-size": "pp-max-micro-batch-size",
    "nsa-decode": "nsa-decode-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "nsa-prefill": "nsa-prefill-backend",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-prefill-cp-mode": "cp-strategy",
    "oltp-traces-endpoint": "otlp-traces-endpoint",
    "optimistic-prefill-retries": "optimistic-prefill-attempts",
    "piecewise-cuda-graph-max-tokens": "cuda-graph-max-bs-prefill",
    "piecewise-cuda-graph-tokens": "cuda-graph-bs-prefill",
    "prefill-cp-mode": "cp-strategy",
    "speculative-dflash-draft-window-size": "speculative-draft-window-size",
    "speculative-ngram-max-match-window-size": "speculative-ngram-max-trie-depth",
    "stream-output": "incremental-streaming-output",
}
# Values a release's argparse refuses, of the flags that two servers must agree on or that take part in the hand-off.
CHOICES: dict[str, tuple[tuple[Span, tuple[str, ...]], ...]] = {
    "disaggregation-transfer-backend": (
        (Span(V0_5_3, V0_5_13), ("mooncake", "nixl", "ascend", "fake")),
        (Span(V0_5_13), ("mooncake", "nixl", "ascend", "fake", "mori", "mooncake_tcp")),
    ),
    "load-balance-method": (
        (Span(V0_5_3, V0_5_8), ("round_robin", "shortest_queue", "minimum_tokens")),
        (Span(V0_5_8), ("auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens")),
    ),
    "disaggregation-decode-retraction-backup": (
        (Span(V0_5_18, V0_5_23), ("cpu_tensor", "host_pool")),
        (Span(V0_5_23), ("cpu_tensor", "host_pool", "none")),
    ),
    "disaggregation-decode-allocation-policy": ((Span(V0_5_23), ("early", "prefill_complete")),),
    "cp-strategy": ((Span(V0_5_18), ("zigzag", "interleave")),),
    "log-requests-level": ((Span(), ("0", "1", "2", "3")),),
    "log-requests-format": ((Span(V0_5_8), ("text", "json")),),
}
_TABLE: tuple[tuple[Span, str], ...] = (
    (
        Span(),
        """
allow-auto-truncate api-key= attention-backend= base-gpu-id= bucket-e2e-request-latency=* bucket-inter-token-latency=*
bucket-time-to-first-token=* chat-template= chunked-prefill-size= completion-template= config=
constrained-json-whitespace-pattern= context-length= cpu-offload-gb= crash-dump-folder= custom-weight-loader=*
data-parallel-size= debug-tensor-dump-input-file= debug-tensor-dump-output-folder= decode-attention-backend=
decode-log-interval= deepep-config= deepep-mode= delete-ckpt-after-loading device= disable-chunked-prefix-cache
disable-cuda-graph disable-cuda-graph-padding disable-custom-all-reduce disable-fast-image-processor
disable-flashinfer-cutlass-moe-fp4-allgather disable-hybrid-swa-memory disable-outlines-disk-cache
disable-overlap-schedule disable-radix-cache disable-shared-experts-fusion disaggregation-bootstrap-port=
disaggregation-decode-enable-offload-kvcache disaggregation-decode-polling-interval= disaggregation-ib-device=
disaggregation-mode= disaggregation-transfer-backend= dist-init-addr= dist-timeout= download-dir= dp-size= dtype=
dynamic-batch-tokenizer-batch-size= dynamic-batch-tokenizer-batch-timeout= enable-cache-report enable-cudagraph-gc
enable-custom-logit-processor enable-deterministic-inference enable-dp-attention enable-dp-lm-head
enable-dynamic-batch-tokenizer enable-eplb enable-flashinfer-allreduce-fusion enable-fp32-lm-head
enable-hierarchical-cache enable-lmcache enable-lora enable-memory-saver enable-metrics
enable-metrics-for-all-schedulers enable-mixed-chunk enable-mscclpp enable-multimodal enable-nccl-nvls
enable-p2p-check enable-pdmux enable-priority-scheduling enable-profile-cuda-graph enable-request-time-stats-logging
enable-return-hidden-states enable-single-batch-overlap enable-symm-mem enable-tokenizer-batch-encode
enable-torch-compile enable-torch-symm-mem enable-trace enable-two-batch-overlap enable-weights-cpu-backup
ep-dispatch-algorithm= ep-num-redundant-experts= ep-size= ep= eplb-algorithm=
eplb-min-rebalancing-utilization-threshold= eplb-rebalance-layers-per-chunk= eplb-rebalance-num-iterations=
expert-distribution-recorder-buffer-size= expert-distribution-recorder-mode= expert-parallel-size= file-storage-path=
flashinfer-mla-disable-ragged flashinfer-mxfp4-moe-precision= gc-warning-threshold-secs= generation-tokens-buckets=*
gpu-id-step= grammar-backend= hicache-io-backend= hicache-mem-layout= hicache-ratio= hicache-size=
hicache-storage-backend-extra-config= hicache-storage-backend= hicache-storage-prefetch-policy= hicache-write-policy=
host= init-expert-location= is-embedding json-model-override-args= kv-cache-dtype= kv-events-config=
load-balance-method= load-format= log-level-http= log-level= log-requests log-requests-level= lora-backend=
lora-paths=* lora-target-modules=* mamba-ssm-dtype= max-loaded-loras= max-lora-chunk-size= max-lora-rank=
max-loras-per-batch= max-mamba-cache-size= max-prefill-tokens= max-queued-requests= max-running-requests=
max-total-tokens= mem-fraction-static= mm-attention-backend= model-impl= model-loader-extra-config= model-path= model=
moe-a2a-backend= moe-dense-tp-size= moe-runner-backend= nccl-init-addr= nccl-port= nnodes= node-rank=
num-continuous-decode-steps= num-reserved-decode-tokens= numa-node=* offload-group-size= offload-mode=
offload-num-in-group= offload-prefetch-step= page-size= pipeline-parallel-size= port= pp-size=
preferred-sampling-params= prefill-attention-backend= priority-scheduling-preemption-threshold=
prompt-tokens-buckets=* quantization-param-path= quantization= radix-eviction-policy= random-seed= reasoning-parser=
remote-instance-weight-loader-seed-instance-ip= remote-instance-weight-loader-seed-instance-service-port=
remote-instance-weight-loader-send-weights-group-ports= revision= sampling-backend= schedule-conservativeness=
schedule-low-priority-values-first schedule-policy= scheduler-recv-interval= served-model-name= show-time-cost
skip-server-warmup skip-tokenizer-init sleep-on-idle sm-group-num= speculative-accept-threshold-acc=
speculative-accept-threshold-single= speculative-algorithm= speculative-attention-mode= speculative-draft-model-path=
speculative-draft-model-revision= speculative-draft-model= speculative-eagle-topk= speculative-ngram-capacity=
speculative-ngram-match-type= speculative-ngram-max-bfs-breadth= speculative-ngram-min-bfs-breadth=
speculative-num-draft-tokens= speculative-num-steps= speculative-token-map= stream-interval= swa-full-tokens-ratio=
tbo-token-distribution-threshold= tensor-parallel-size= tokenizer-metrics-allowed-custom-labels=*
tokenizer-metrics-custom-labels-header= tokenizer-mode= tokenizer-path= tokenizer-worker-num= tool-call-parser=
tool-server= torch-compile-max-bs= tp-size= triton-attention-num-kv-splits= triton-attention-reduce-in-fp32
triton-attention-split-tile-size= trust-remote-code warmups= watchdog-timeout= weight-loader-disable-mmap
weight-version=
""",
    ),
    (
        Span(V0_5_3, V0_5_23),
        """
collect-tokens-histogram cuda-graph-bs=* cuda-graph-max-bs= enable-expert-distribution-metrics
keep-mm-feature-on-device prefill-round-robin-balance stream-output
""",
    ),
    (
        Span(V0_5_3, V0_5_18),
        """
debug-tensor-dump-inject= torchao-config=
""",
    ),
    (
        Span(V0_5_3, V0_5_13),
        """
disaggregation-decode-dp= disaggregation-decode-tp= disaggregation-prefill-pp= ds-channel-config-path=
ds-heavy-channel-num= ds-heavy-channel-type= ds-heavy-token-num= ds-sparse-decode-threshold= enable-double-sparsity
enable-nan-detection speculative-ngram-branch-length= speculative-ngram-max-match-window-size=
speculative-ngram-min-match-window-size=
""",
    ),
    (
        Span(V0_5_3, V0_5_8),
        """
debug-tensor-dump-prefill-only enable-deepep-moe enable-ep-moe enable-flashinfer-cutedsl-moe
enable-flashinfer-cutlass-moe enable-flashinfer-mxfp4-moe enable-flashinfer-trtllm-moe enable-triton-kernel-moe
hybrid-kvcache-ratio=? load-watch-interval= max-micro-batch-size= nsa-decode= nsa-prefill= oltp-traces-endpoint=
""",
    ),
    (
        Span(V0_5_8),
        """
abort-on-priority-when-disabled admin-api-key= checkpoint-engine-wait-weights-before-ready
constrained-json-disable-any-whitespace debug-tensor-dump-layers=* decrypted-config-file= decrypted-draft-config-file=
disable-flashinfer-autotune disable-tokenizer-batch-decode dllm-algorithm-config= dllm-algorithm= elastic-ep-backend=
enable-attn-tp-input-scattered enable-broadcast-mm-inputs-process enable-draft-weights-cpu-backup
enable-dynamic-chunking enable-fused-qk-norm-rope enable-layerwise-nvtx-marker enable-lora-overlap-loading
enable-multi-layer-eagle enable-precise-embedding-interpolation enable-prefill-delayer enable-prefix-mm-cache
enable-return-routed-experts enable-torch-compile-debug-mode encoder-only encoder-transfer-backend= encoder-urls=*
export-metrics-to-file export-metrics-to-file-dir= fastapi-root-path= forward-hooks= fp4-gemm-backend=
fp8-gemm-backend= grpc-mode hf-chat-template-name= hierarchical-sparse-attention-extra-config= kt-cpuinfer=
kt-max-deferred-experts-per-token= kt-method= kt-num-gpu-experts= kt-threadpool-count= kt-weight-path= language-only
limit-mm-data-per-request= log-requests-format= log-requests-target=* lora-eviction-policy= mamba-full-memory-ratio=
mamba-track-interval= mm-enable-dp-encoder mm-process-config= model-checksum=? modelopt-checkpoint-restore-path=
modelopt-checkpoint-save-path= modelopt-export-path= modelopt-quant= mooncake-ib-device= otlp-traces-endpoint=
pdmux-config-path= pp-async-batch-depth= pp-max-micro-batch-size= prefill-delayer-forward-passes-buckets=*
prefill-delayer-max-delay-passes= prefill-delayer-token-usage-low-watermark= prefill-delayer-wait-seconds-buckets=*
prefill-max-requests= quantize-and-serve remote-instance-weight-loader-backend=
remote-instance-weight-loader-start-seed-via-transfer-engine rl-on-policy-target= rl-quant-profile= sampling-defaults=
soft-watchdog-timeout= speculative-draft-attention-backend= speculative-draft-load-format=
speculative-draft-model-quantization= speculative-moe-a2a-backend= speculative-moe-runner-backend=
uvicorn-access-log-exclude-prefixes=*
""",
    ),
    (
        Span(V0_5_8, V0_5_23),
        """
enable-nsa-prefill-context-parallel mamba-scheduler-strategy= nsa-decode-backend= nsa-prefill-backend=
nsa-prefill-cp-mode= piecewise-cuda-graph-compiler= piecewise-cuda-graph-max-tokens= piecewise-cuda-graph-tokens=*
""",
    ),
    (
        Span(V0_5_8, V0_5_18),
        """
custom-sigquit-handler= enable-piecewise-cuda-graph hybrid-kvcache-ratio
""",
    ),
    (
        Span(V0_5_8, V0_5_13),
        """
disable-hicache-numa-detect disaggregation-decode-enable-fake-auto mm-max-concurrent-calls= mm-per-request-timeout=
multi-item-scoring-delimiter=
""",
    ),
    (
        Span(V0_5_13),
        """
asr-max-buffer-seconds= asr-max-concurrent-sessions= attention-context-parallel-size= attn-cp-size= batch-notify-size=
debug-cuda-graph deepep-dispatcher-output-dtype= default-priority-value= detokenizer-worker-num=
disable-attn-tp-gather disable-priority-preemption disaggregation-decode-enable-radix-cache dsa-decode-backend=
dsa-prefill-backend= dsa-topk-backend= enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion
enable-deepseek-v4-fp4-indexer enable-dp-attention-local-control-broadcast enable-elastic-expert-backup
enable-forward-pass-metrics enable-fused-moe-sum-all-reduce enable-hisparse enable-http2 enable-mfu-metrics enable-mis
enable-mm-global-cache enable-quant-communications enable-return-indexer-topk enable-ssl-refresh
enable-streaming-session enable-strict-thinking encoder-bootstrap-port= encoder-register-urls=*
enforce-disable-flashinfer-allreduce-fusion enforce-shared-experts-fusion engine-info-bootstrap-port=
experts-shared-outer-loras extra-metric-labels= forward-pass-metrics-ipc-name= forward-pass-metrics-worker-id=
gc-threshold=* grpc-http-sidecar-port= hisparse-config= incremental-streaming-output kv-canary-real-data=
kv-canary-sweep-interval= kv-canary= linear-attn-backend= linear-attn-decode-backend= linear-attn-prefill-backend=
lmcache-config-file= load-snapshot-publish-interval= lora-drain-wait-threshold= lora-strict-loading
lora-use-virtual-experts mamba-backend= model-config-parser= modelexpress-config= moe-data-parallel-size= moe-dp-size=
msprobe-dump-config= no-experts-shared-outer-loras no-lora-strict-loading pre-warm-nccl prefill-delayer-max-delay-ms=
prefill-delayer-queue-min-ratio= prefill-only-disable-kv-cache radix-cache-backend= speculative-adaptive
speculative-adaptive-config= speculative-dflash-block-size= speculative-draft-window-size=
speculative-ngram-external-corpus-max-tokens= speculative-ngram-external-corpus-path=
speculative-ngram-external-sam-budget= speculative-ngram-max-trie-depth= ssl-ca-certs= ssl-certfile=
ssl-keyfile-password= ssl-keyfile= stream-response-default-include-usage strip-thinking-cache tokenizer-backend=
trace-modules= use-ray weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints
weight-loader-prefetch-num-threads=
""",
    ),
    (
        Span(V0_5_13, V0_5_23),
        """
disable-piecewise-cuda-graph dsa-prefill-cp-mode= elastic-ep-rejoin enable-breakable-cuda-graph
enable-dsa-prefill-context-parallel enable-prefill-context-parallel enforce-piecewise-cuda-graph prefill-cp-mode=
speculative-dflash-draft-window-size= speculative-skip-dp-mlp-sync
""",
    ),
    (
        Span(V0_5_13, V0_5_18),
        """
enable-deepep-waterfill optimistic-prefill-retries=
""",
    ),
    (
        Span(V0_5_18),
        """
allowed-media-domains=* bf16-gemm-backend= c128-page-size= cp-strategy= cuda-graph-backend-decode=
cuda-graph-backend-prefill= cuda-graph-bs-decode=* cuda-graph-bs-prefill=* cuda-graph-config=
cuda-graph-max-bs-decode= cuda-graph-max-bs-prefill= dcp-comm-backend= dcp-replicate-q-proj dcp-size=
decode-context-parallel-size= decoupled-spec-bind-endpoint= decoupled-spec-connect-endpoints= decoupled-spec-rank=
decoupled-spec-role= default-chat-template-kwargs= disable-decode-cuda-graph disable-prefill-cuda-graph
disaggregation-decode-extra-slots= disaggregation-decode-retraction-backup= dllm-fdfo dsa-paged-mqa-logits-backend=
dwdp-size= elastic-ep-initial-size= elastic-ep-join-mode= elastic-ep-join-rank-offset= elastic-ep-scale-timeout=
enable-cp-decode-attn-tp enable-dsa-cache-layer-split enable-flexkv enable-int8-mamba-checkpoint
enable-linear-replayssm enable-linear-replayssm-spec enable-mamba-cache-stochastic-rounding
enable-page-major-kv-layout enable-prefill-cp enable-scattered-sconv enable-session-radix-cache enable-tf32-matmul
enable-tp-lm-head-all-to-all enable-unified-memory enable-waterfill expert-balancedness-report-mode=
flashinfer-allreduce-fusion-backend= flashinfer-autotune-skip-ops=* flexkv-config-file= fuseep-mode= grpc-port=
http2-max-concurrent-streams= image-processor-backend= int8-mamba-ckpt-size= language-model-only
linear-attn-verify-backend= linear-replayssm-cache-len= mamba-cache-philox-rounds= mamba-max-states-per-path=
mamba-radix-cache-strategy= max-ep-size= media-url-max-file-size-mb= min-free-slots-delay= mlx-enable-sampling
mm-feature-transport= mm-global-cache-backend= mm-io-worker-num= mm-preprocess-cache-size-mb= mm-processor-worker-num=
no-dcp-replicate-q-proj no-dllm-fdfo no-enable-tp-lm-head-all-to-all optimistic-prefill-attempts= retraction-policy=
return-hidden-states-mode= sidecar-args= sidecar= smg-grpc-mode smg-http-sidecar-port= spec-trace-dir=
speculative-draft-kv-cache-dtype= speculative-dspark-align-verify-tokens-to-graph-tier speculative-dspark-block-size=
speculative-dspark-confidence-sts-path= speculative-dspark-sps-table-path= speculative-use-rejection-sampling
startup-weight-load-mode= trust-mm-content-hashes weight-cache-mode= weight-cache-socket= weight-cache-timeout=
""",
    ),
    (
        Span(V0_5_18, V0_5_23),
        """
cuda-graph-tc-compiler= enable-gdn-replayssm-spec
""",
    ),
    (
        Span(V0_5_23),
        """
attention-data-parallel-size= attn-dp-size= boundary-reduction= constrained-json-max-whitespace-cnt= context-bucket=
cuda-graph-max-seq-len-prefill= cuda-graph-prefill-max-context= deepep-v2-mode=
disable-aiter-allreduce-fusion-in-decode disable-aiter-allreduce-fusion-in-prefill
disaggregation-decode-allocation-policy= disaggregation-decode-host-receive-threshold=
disaggregation-enable-kv-checksum dsa-triton-union= dsv4-attn-backend= dsv4-prefill-backend= enable-amd-monokernel
enable-decoder-swa-bounded-replay enable-dense-mlp-attn-tp enable-dsa-fused-indexer enable-encoder-swa-bounded-replay
enable-hicache enable-http-worker-reuseport enable-kv-cache-sharding enable-layernorm-sp enable-lean-attention
enable-linker-mla-dedup enable-megamoe-for-layernorm-sp enable-nvidia-megakernel enable-paged-experts
enable-pd-role-switch enable-response-store enable-return-aux-hidden-states enable-shared-experts-attn-tp
enable-unified-cache-external-linker enable-w4a4-mxfp4-megamoe enable-watermark flashinfer-a2a-dispatch-type=
gated-launch-port= grpc-response-timeout-secs= hicache-host-memory-fraction= hicache-host-memory-mode=
hicache-storage-prefetch-retry-max-attempts= hicache-storage-prefetch-retry-poll-interval=
http2-initial-connection-window-size= load-publish-endpoint= monokernel-backend no-enable-decoder-swa-bounded-replay
no-enable-dsa-fused-indexer no-enable-fused-qk-norm-rope no-enable-tf32-matmul no-mm-enable-dp-encoder
no-ple-offload-embedding no-speculative-enable-w4a4-mxfp4-megamoe otlp-service-name= paged-experts-num-resident=
ple-offload-backend= ple-offload-dir= ple-offload-embedding prefill-decode-interval-min-bs= prefill-decode-interval=
prefill-kv-cache-dequant-dtype= qsa-indexer-dtype= radix-eviction-policy-config= return-aux-hidden-state-layer-ids=*
return-input-ids return-output-ids sampling-mask-max-tokens= shared-experts-tp-size=
speculative-domino-candidate-pool-size= speculative-draft-sink-size= speculative-dsa-topk-backend=
speculative-enable-w4a4-mxfp4-megamoe speculative-use-block-verification swa-prefix-tails= trust-request-chat-template
unified-cache-external-linker-backend= unified-cache-external-linker-config= uno-lora-path= watermark-config=
""",
    ),
)


@cache
def arguments() -> dict[str, tuple[Argument, ...]]:
    """By name without dashes; more than one where a flag came to take something else."""
    found: dict[str, tuple[Argument, ...]] = {}
    for span, names in _TABLE:
        for word in names.split():
            name, equals, more = word.partition("=")
            found[name] = (*found.get(name, ()), Argument(name, equals + more, span))
    return found


def argument(name: str, version: Version) -> Argument | None:
    """The flag as this release has it."""
    return next((one for one in arguments().get(name, ()) if one.span.holds(version)), None)


def choices(name: str, version: Version) -> tuple[str, ...]:
    """The values a flag may have in this release; empty where they are not kept here."""
    return next((allowed for span, allowed in CHOICES.get(name, ()) if span.holds(version)), ())


def gap(name: str, release: Release) -> Gap | None:
    """None for a flag the release has."""
    version, exact = release.known, not release.note
    if argument(name, version) is not None or len(_abbreviated(name, version)) == 1:
        return None
    rows = arguments().get(name)
    if rows is None:
        near = _near(name, version)
        return Gap("no release pdctl knows has it", f"did you mean --{near}?" if near else "", exact)
    later = min((row.span.since for row in rows if row.span.since > version), default=None)
    if later is not None:
        before = next((old for old in SUCCESSORS if _leads_to(old, name) and argument(old, version)), "")
        return Gap(f"since {spell(later)}", f"it has --{before}" if before else "", exact)
    last = max(row.span.until for row in rows if row.span.until is not None)
    return Gap(f"only until {spell(last)}", _successor(name, version), True)


def _abbreviated(name: str, version: Version) -> list[str]:
    """The flags that begin so: argparse takes a beginning for the flag where only one has it."""
    return [known for known in arguments() if known.startswith(name) and argument(known, version) is not None]


def _successor(name: str, version: Version) -> str:
    """What the release has in its place, in words."""
    while name in SUCCESSORS:
        words = SUCCESSORS[name]
        name = words.partition(":")[0]
        if " " in name:
            return f"it has {words}"
        if argument(name, version) is not None:
            return f"it has --{name}" if name == words else f"write `{words}`"
    return ""


def _leads_to(old: str, new: str) -> bool:
    while old in SUCCESSORS:
        old = SUCCESSORS[old]
        if old == new:
            return True
    return False


def _near(name: str, version: Version) -> str:
    from difflib import get_close_matches  # late: only a mistake needs it

    here = [known for known in arguments() if argument(known, version) is not None]
    return next(iter(get_close_matches(name, here, 1, 0.8)), "")
