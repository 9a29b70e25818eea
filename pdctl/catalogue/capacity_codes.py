"""Capacity that does not suffice: tokens, slots, ranks and buffers."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD501",
        "decode-capacity",
        Severity.WARNING,
        "decode is too small for the load: {short|rooms wait while its KV pool is full}",
        "Decode announces a room to prefill only when it has a slot and pages for prompt and answer. When its KV pool "
        "is full, new rooms wait in its prealloc queue, prefill waits for them, and after 300 s prefill reports "
        '"timed out after 300.0s in KVPoll.Bootstrapping", which looks like a network fault but is not one. Longer '
        "timeouts only lengthen the queue. Recognised by num_decode_prealloc_queue_reqs above zero with token usage "
        "near 1. Next: decode's KV tokens, against the number of concurrent requests times their length.",
        "add decode instances: --set roles.decode.instances={needed|COUNT}",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.CANARY),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited(
            "sglang#10110 sglang#8177 sglang#9266 sglang#8744 sglang#10204 sglang#11648 sglang#5450 Mooncake#62"
        ),
    ),
    Entry(
        "PD502",
        "reserved-tokens",
        Severity.WARNING,
        "{instance|decode}: {observed|its slots reserve many tokens}, but {limit|the KV pool holds fewer}",
        "Decode keeps --num-reserved-decode-tokens (512) free for every running request before it admits another, and "
        "--max-running-requests is divided by the DP ranks. If the reserve times the slots exceeds the KV pool, or "
        "there are fewer slots than DP ranks, decode silently admits little or nothing. Too small a reserve, on the "
        'other hand, ends in "Decode out of memory happened" and retracted requests, and with HiSparse a retraction '
        "was reported to crash. Next: max_total_num_tokens, --max-running-requests, --num-reserved-decode-tokens and "
        "the DP width.",
        "{fix|lower --max-running-requests}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "0.5.3 to 0.5.23; the pools of Mamba models since 0.5.3.post3",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited(
            "sglang#6857 sglang#6860 sglang#7196 sglang#19881 sglang#40729 sglang#40730 sglang#40732 sglang#12432 "
            "bytedance-iaas/sglang#457"
        ),
    ),
    Entry(
        "PD503",
        "deepep-dispatch",
        Severity.ERROR,
        "{instance|decode}: {observed|256} tokens per rank can be dispatched at once, but DeepEP's buffer holds "
        "{expected|128}",
        "DeepEP's low-latency mode sizes its buffer by SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK (128 unless "
        "set). A decode rank sends one token per running request, times the draft width with speculation. If they "
        "exceed the buffer, it ends with the assertion x.size(0) <= num_max_dispatch_tokens_per_rank, under load or "
        "while graphs are captured. Next: --max-running-requests per DP rank, --cuda-graph-max-bs and the draft "
        "tokens.",
        "{fix|lower --max-running-requests}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang with DeepEP",
        "public reports; sglang 0.5.3 to 0.5.23 source",
        reports=cited("DeepEP#165 sglang#28985 sglang#6081 sglang#29942 sglang#14171"),
    ),
    Entry(
        "PD504",
        "multi-node-shape",
        Severity.ERROR,
        "{instance|an instance} cannot be placed: {observed|its ranks do not fit its nodes and GPUs}",
        "An instance of several nodes forms only when nodes x GPUs = tp x pp, each node has its own rank, and all "
        'dial the same --dist-init-addr, which no other instance uses. Otherwise it hangs at "Init torch distributed '
        'begin", reports "Gloo connectFullMesh failed", or waits for 1800 s. Where SGLang asserts, pdctl says so '
        "before anything starts. If two engines use one GPU of a host (without --base-gpu-id or CUDA_VISIBLE_DEVICES "
        'every engine begins with GPU 0), the later one gets the memory that the first one left, and ends with "Not '
        'enough memory. Please try to increase --mem-fraction-static." or an out-of-memory error. Next: nnodes, node '
        "ranks and rendezvous address of each node, and the GPUs of each engine.",
        "{fix|make nodes x GPUs equal to tp x pp, with one --dist-init-addr for each instance}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#4978 sglang#3226 sglang#7478 sglang#3467 sglang#958 sglang#3932"),
    ),
    Entry(
        "PD505",
        "request-too-long",
        Severity.ERROR,
        "{instance|an engine}: a request of {observed|5000} tokens is above the limit of {expected|4096}",
        "A prompt above the context length or the KV pool must be refused with 400 at once. From 0.5.11 to 0.5.18 "
        "prefill aborted it and handed over a stub of one token, and decode went on from pages nobody had written: "
        "HTTP 200 with noise or with text from somebody else's request. Next: prompt_tokens of the answer, which is "
        "then 1.",
        "refuse prompts above {expected|the limit} in front of the router",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.CANARY),
        "SGLang 0.5.11 to 0.5.18; a workload that does not fit concerns every release",
        "sglang 0.5.13 and 0.5.18 source; public reports",
        reports=cited("sglang#30233 sglang#30551 sglang#34208 sglang#32605"),
    ),
    Entry(
        "PD506",
        "prefill-overcommitted",
        Severity.WARNING,
        "prefill is too small for the load: {short|rooms wait for their transfer while its KV pool is full}",
        "A prefill keeps the KV of a request until it is transferred. When prompts arrive faster than it computes, or "
        "than the network carries them away, requests pile up (#transferring-req in the hundreds, token usage above "
        "0.9), time to first token grows, and with large pages it was reported to run out of memory. With short "
        "prompts PD may also be slower than instances that do both. Next: prompt tokens per second and bytes of KV "
        "per second against what one instance does.",
        "add prefill instances: --set roles.prefill.instances={needed|COUNT}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang source; public reports",
        reports=cited("sglang#7353 sglang#7256 sglang#38094 sglang#5450 Mooncake#62"),
    ),
    Entry(
        "PD507",
        "overload-collapse",
        Severity.ERROR,
        "above a certain concurrency everything fails, and does not recover",
        "Reported above about a thousand requests at once: transfers fail, aborted rooms are retried, retries and "
        'breakers feed each other, and the deployment stays down after the load is gone ("Prefill bootstrap failed '
        '... Aborted by AbortReq" for all ranks of a room). Next: how many requests the router admits at once.',
        "start the router with --max-concurrent-requests COUNT",
        (),
        "every SGLang",
        "public reports",
        "it needs more load than a check may put on a deployment; PD501 tells beforehand when decode is too small",
        reports=cited("sglang#9266 sglang#8744 sglang#12355"),
    ),
    Entry(
        "PD508",
        "kv-lease-expired",
        Severity.ERROR,
        "vLLM released the KV cache before decode fetched it",
        "A vLLM prefill keeps a request's blocks for a limited time. If decode's queue takes longer, they are gone: "
        '"Releasing expired KV blocks for request ... retrieved by 0 decode worker(s)", and wrong answers were '
        "reported. Next: decode's queue, and nixl_num_kv_expired_reqs.",
        "raise VLLM_NIXL_ABORT_REQUEST_TIMEOUT on prefill",
        (),
        "vLLM with the NIXL connector",
        "public reports",
        "pdctl probes SGLang engines and its own",
        reports=cited("vllm#21570 vllm#25562 vllm#25897 vllm#41269 vllm#32340"),
    ),
    Entry(
        "PD509",
        "socket-interface",
        Severity.INFO,
        "{instance|an instance} spans {hosts|several} hosts, and no network interface is named",
        "Gloo and NCCL pick an interface by themselves. On hosts with several (a docker bridge, a management network, "
        'RDMA rails) two nodes may pick ones that cannot reach each other, and the start hangs at "Init torch '
        'distributed begin" or with "Gloo connectFullMesh failed". Next: `ip -br addr` on the nodes.',
        "export GLOO_SOCKET_IFNAME={interface} NCCL_SOCKET_IFNAME={interface}",
        (Needs.TOPOLOGY,),
        "every SGLang on several nodes",
        "public reports; published recipes",
        reports=cited("sglang#4978 sglang#3226 sglang#7478 sglang#3467 sglang#958 sglang#3932"),
    ),
)
