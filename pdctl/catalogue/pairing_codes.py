"""Settings that prefill and decode must share, and releases that do not work as documented."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD301",
        "roles-swapped",
        Severity.ERROR,
        "{instance|an engine} runs as {observed|one role}, but the router uses it as {expected|the other}",
        "The router takes roles from its command line and never compares them with what the worker reports; it "
        "serves without a warning. Prefill requests then reach a decode server: it looks for a bootstrap server at "
        "an address that has none, and requests fail or hang. The same happens when both hosts were started with "
        "the same --disaggregation-mode. An engine without that flag is a server of its own: it looks for no peer, so "
        "what is sent to it as one half of a pair hangs or fails. Next: disaggregation_mode in /server_info of both "
        "sides.",
        "{fix|give the router each engine under the flag of its own role}",
        (Needs.TOPOLOGY, Needs.ROUTER, Needs.ENDPOINT),
        "every SGLang and every router",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#23272"),
    ),
    Entry(
        "PD302",
        "page-size-mismatch",
        Severity.ERROR,
        "page size is {observed|one thing} on {instance|decode} and {expected|another} on {other|prefill}: KV pages "
        "will not fit",
        "Pages are copied byte for byte. Releases before 0.5.8 do not compare sizes and silently corrupt the cache; "
        'later ones compare on the first request only, raise "Page size mismatch", and then the decode scheduler dies '
        "or the client hangs. The sizes often differ although nobody set them, because the attention backend picks "
        "one. Next: page_size in /server_info of both sides, which is the resolved value.",
        "set --page-size {size|64} on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang; compared since 0.5.8, on the first request",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#14439 sglang#14474"),
    ),
    Entry(
        "PD303",
        "kv-dtype-mismatch",
        Severity.ERROR,
        "KV cache dtype is {observed|one thing} on {instance|decode} and {expected|another} on {other|prefill}",
        "The bytes of a page mean something else on the other side. From 0.5.10 decode refuses on the first request "
        'with "KV cache dtype mismatch"; up to 0.5.16 it compares the flag as written, so `auto` against `fp8_e4m3` '
        "fails even where both resolve to the same type. Before 0.5.10 nothing is compared. Next: kv_cache_dtype in "
        "/server_info of both sides.",
        "set the same --kv-cache-dtype on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang; compared since 0.5.10, on the first request",
        "sglang 0.5.8 to 0.5.23 source",
        reports=cited("sglang#37838"),
    ),
    Entry(
        "PD304",
        "kv-layout-mismatch",
        Severity.WARNING,
        "the KV cache may be laid out differently: {instance|decode} has {observed|one attention backend}, but "
        "{other|prefill} has {expected|another}",
        "With the same page size and dtype a page can still be laid out differently, because the attention backend "
        "decides it. Then copies come out short, transfers fail with a length error, or text turns to noise. 0.5.23 "
        'compares a layout name ("KV layout mismatch") for the models that publish one; earlier releases compare '
        "nothing. Next: attention_backend and kv_layout of both sides.",
        "start both roles with the same attention backend",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang; compared in 0.5.23 for models that publish a layout",
        "sglang 0.5.23 source",
        reports=cited("sglang#37838"),
    ),
    Entry(
        "PD305",
        "attn-tp-mismatch",
        Severity.WARNING,
        "attention TP is {observed|one width} on {instance|decode} and {expected|another} on {other|prefill}: every "
        "page is sent in small slices",
        "With grouped-query attention each rank holds a share of the KV heads. When the widths differ (attention TP "
        "is tp / dp under DP attention), pages are sent as many small slices: slow at low load, and reported to break "
        'both sides under load. SGLang says so once: "Performance is NOT guaranteed when using different TP sizes for '
        'non-MLA models". MLA models keep the whole latent on every rank and are not affected. '
        "SGLANG_DISAGG_STAGING_BUFFER=1 gathers the heads first (0.5.10 and later). Next: tp and dp of both roles.",
        "make tp / dp equal on both roles, or set SGLANG_DISAGG_STAGING_BUFFER=1 on both",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang, models without MLA",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#15674 sglang#5922 sglang#19890"),
    ),
    Entry(
        "PD306",
        "attn-tp-mismatch-hybrid",
        Severity.ERROR,
        "attention TP is {observed|one width} on {instance|decode} and {expected|another} on {other|prefill}, and "
        "{model|this} is a hybrid model",
        "Sliding-window and Mamba models carry state besides the KV cache, and not every release and backend can "
        'split that state for another width. Prefill then raises "PD Disaggregation does NOT support PD different TP '
        'sizes" in a transfer worker, decode never learns of it, and the client hangs. With NIXL the same mismatch '
        "was also seen as NIXL_ERR_NOT_FOUND in prep_xfer_dlist and as an integer overflow; after it every later "
        'request hangs. Next: the prefill\'s log, "Unexpected transfer worker error".',
        "make tp / dp equal on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "reported for 0.5.16 and nightlies of mid 2026; Mamba state is sliced from 0.5.9 (Mooncake) and 0.5.11 "
        "(NIXL), sliding windows from 0.5.22 (both, one pipeline stage)",
        "sglang 0.5.8 to 0.5.23 source",
        reports=cited("llm-d#2433 llm-d#2442 sglang#31295 sglang#31968 sglang#30997 sglang#24648 sglang#24188"),
    ),
    Entry(
        "PD307",
        "context-length-differs",
        Severity.WARNING,
        "context length is {observed|one thing} on {instance|decode} and {expected|another} on {other|prefill}: "
        "long prompts will hang",
        "The side with the shorter limit refuses a long prompt, and the other side waits for it: prefill ends 300 s "
        "later with a Bootstrapping timeout, for long prompts only. The value is not part of what the two sides "
        "compare. A smaller KV pool has the same effect, because it bounds the longest request as well. Next: "
        "context_length and max_total_num_tokens of both sides.",
        "set the same --context-length on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.23 source",
        reports=cited("sglang#23380"),
    ),
    Entry(
        "PD308",
        "speculative-differs",
        Severity.ERROR,
        "speculative decoding differs: {instance|decode} has {observed|one setting}, but {other|prefill} has "
        "{expected|another}",
        "Draft KV and hidden states travel in buffers that each side sizes by its own settings. If speculation is set "
        "on one side only, or differently, the buffers no longer line up: wrong text without an error on some models, "
        '"Failed to get segment descriptor", or a killed decode. A few pairs with drafts on decode only are known to '
        "work; pdctl has no list of them. Next: the --speculative-* flags of both roles.",
        "give both roles the same --speculative-* flags, or none",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang; new cases were still reported in August 2026",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#17212 sglang#33877 sglang#23958 sglang#9976 sglang#23918 vllm#49230"),
    ),
    Entry(
        "PD309",
        "backend-differs",
        Severity.ERROR,
        "transfer backend is {observed|one thing} on {instance|decode} and {expected|another} on {other|prefill}",
        "Mooncake, NIXL and the others speak different messages and register memory in different ways. Nothing "
        "compares them: decode sends its page list, prefill cannot read it, and the room ends at a timeout. The "
        "default is mooncake, so a flag given on one side only is enough. mooncake_tcp is mooncake forced onto TCP, "
        "and both sides must use it. Next: disaggregation_transfer_backend of both sides.",
        "set the same --disaggregation-transfer-backend on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
    ),
    Entry(
        "PD310",
        "version-differs",
        Severity.ERROR,
        "{instance|decode} runs SGLang {observed|of one release}, but {other|prefill} runs {expected|another}",
        "The bootstrap record, the ZMQ frames and the metadata row change between releases and carry no version. An "
        'older decode refuses keys it does not know ("unexpected keyword argument"), newer fields are misread '
        'where frames were added in the middle, and 0.5.22 and later warn of a "Generation-less ABORT_ACK" from mixed '
        "versions. The same holds for the transfer library in the image. Next: version in /server_info, and the "
        "image of each role.",
        "run the same image on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.13 to 0.5.23 source",
        reports=cited("sglang#34289 vllm#51777"),
    ),
    Entry(
        "PD311",
        "model-differs",
        Severity.ERROR,
        "{instance|decode} serves {observed|one model}, but {other|prefill} serves {expected|another}",
        "Neither the handshake nor the router compares models: sglang-router and smg say nothing when model_path "
        "differs. With equal shapes the transfer succeeds and decode continues with the weights of another "
        "checkpoint: fluent but wrong text. With other shapes it fails in the transfer. Next: model_path of both "
        "sides; a local directory may hide another revision.",
        "start both roles with the same --model-path and revision",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang and every router",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
    ),
    Entry(
        "PD312",
        "mamba-dtype-differs",
        Severity.ERROR,
        "Mamba state dtype is {observed|one thing} on {instance|decode} and {expected|another} on {other|prefill}: "
        "answers will degrade without an error",
        "The recurrent state of a Mamba-like model is copied with the sender's stride and read with the receiver's. "
        "Nothing compares the two, nothing fails, and long answers slowly become worse. Next: --mamba-ssm-dtype of "
        "both roles.",
        "set the same --mamba-ssm-dtype on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "up to 0.5.17",
        "public report",
        reports=cited("sglang#36371"),
    ),
    Entry(
        "PD313",
        "dp-rank-contract",
        Severity.ERROR,
        "prefill and decode will not agree on the DP rank of a room: {observed|different rules}",
        "With several DP ranks both sides must come to the same rank for a room: by room modulo dp, or by asking the "
        "bootstrap server. It breaks when plain data parallel (no DP attention) is used on prefill in the releases "
        'that check the attention rank ("follow_bootstrap_room conflict", about half of the requests fail with dp 2), '
        "when a router picks ranks by itself, and when --load-balance-method round_robin is carried over a release "
        "where its meaning changed: before 0.5.8 it alone followed the room; follow_bootstrap_room does so in later "
        "releases. --prefill-round-robin-balance has an effect on decode before 0.5.8 only. Next: dp settings and "
        "--load-balance-method of both roles.",
        "{fix|set --load-balance-method auto on both roles}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "0.5.3 to 0.5.23, each with its own rule",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited(
            "sglang#29725 sglang#16110 sglang#16080 sglang#13052 sglang#10174 sglang#22901 sglang#21299 "
            "sglang#21297 sglang#24772 sglang#19168 dynamo#9080"
        ),
    ),
    Entry(
        "PD314",
        "chunked-prefill-not-page-multiple",
        Severity.ERROR,
        "{instance|prefill}: chunked prefill size {observed|100} is not a multiple of page size {expected|64}",
        "A chunk must end on a page border. SGLang divides --chunked-prefill-size by the DP width first, so the flag "
        "is a value for the whole instance and each DP rank gets its share of it; that share must be whole pages. "
        "SGLang asserts this when it starts. Next: chunk size, DP width and page size of prefill.",
        "set --chunked-prefill-size to {fix|a multiple of page size x DP width}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
    ),
    Entry(
        "PD315",
        "pp-mismatch",
        Severity.ERROR,
        "pipeline stages cannot be paired: {observed|2} on decode, {expected|4} on prefill",
        "A decode has either as many pipeline stages as the prefill, each of which pulls from its counterpart, or a "
        "single one. Anything else ends the decode scheduler with an assertion on the first request (0.5.8 and later) "
        "or silently goes wrong (before). Next: pp_size of both roles.",
        "{fix|set --pp-size of decode to 1, or to that of prefill}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
    ),
    Entry(
        "PD316",
        "tp-not-divisible",
        Severity.ERROR,
        "{instance|an instance}: sizes do not divide evenly: {observed|TP, DP, EP or heads}",
        "Heads, experts and ranks are split by integer division. Between the roles the larger attention TP must be a "
        "multiple of the smaller: 3 against 2 pairs the wrong ranks, and since 0.5.10 nothing checks it. Within an "
        "instance tp must be a multiple of the DP width, and the model's heads must divide over attention TP. Next: "
        "tp, dp and ep of both roles (`pdctl plan` prints the ranks).",
        "{fix|make the larger size a multiple of the smaller}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang; the pair is checked up to 0.5.9 only",
        "sglang 0.5.3 to 0.5.23 source",
    ),
    Entry(
        "PD317",
        "known-bad-version",
        Severity.WARNING,
        "{instance|an instance}: {observed|its release} has a known fault: {fault|it loses rooms} ({report|a "
        "public report})",
        "pdctl has a table of faults that were reported and then found in the released sources, by version, transfer "
        "backend and feature. The fault is in the release, not in this deployment, and may not have happened yet. "
        "Each finding names the public report. Next: whether the feature it names is used here.",
        "{fix|update to a release without this fault}",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.ROUTER, Needs.HOST),
        "per row; each names the releases it was found in",
        "public reports; the sources of sglang 0.5.3 to 0.5.23",
        reports=cited(
            "sglang#34692 sglang#30301 sglang#30352 sglang#30685 sglang#36033 sglang#30327 sglang#30329 "
            "sglang#36108 sglang#36612 sglang#32267 sglang#35189 sglang#23489 sglang#23499 nixl#2102 nixl#1986 "
            "vllm#49238 sglang#32209 sglang#32527 sglang#30839 sglang#19305 sglang#19271 sglang#30233 sglang#30551 "
            "sglang#34208 sglang#32605 sglang#12779 sglang#31144 sglang#13657 sglang#31206 sglang#25811 "
            "sglang#27608 sglang#23020 sglang#35049"
        ),
    ),
    Entry(
        "PD318",
        "refused-flags",
        Severity.ERROR,
        "{instance|an engine} will not start: {observed|this release refuses its flags}",
        'A flag that the parser of an engine or a router does not know makes the start fail with "unrecognized '
        'arguments": a typo, an underscore for a dash, a flag of another release. An abbreviated flag is accepted if '
        "only one flag begins with it. SGLang refuses combinations as well, some of them only after the model has "
        "loaded, and what it refuses differs by release: decode radix cache with speculation, prefill_complete with "
        "anything but Mooncake, role switching with parallel or speculative features, pipeline stages with "
        "speculation, a fake backend on prefill, the same IB device named twice. pdctl applies the release's own "
        "rules before anything starts. Next: the named flags.",
        "{fix|drop one of the flags}",
        (Needs.TOPOLOGY,),
        "each rule names its releases",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited(
            "sglang#17598 sglang#20241 sglang#25873 sglang#26316 sglang#25521 sglang#36140 sglang#31139 "
            "sglang#39378 sglang#12121 sglang#10124 sglang#30609"
        ),
    ),
    Entry(
        "PD319",
        "parallel-sampling-shares-room",
        Severity.WARNING,
        "requests with n > 1 hang or mix answers: every sample gets the same room",
        "SGLang copies the request's bootstrap host, port and room to each of the n samples. Rooms must be unique: "
        "one sample finishes, the others are aborted or wait for 300 s, or two answers mix; before 0.5.12 with NIXL "
        "the prefill's scheduler ends with a KeyError. The routers pass n on. "
        "Nothing on the server side refuses it; Dynamo answers 400. Recognised by two samples with one "
        "bootstrap_room in the decode's log, one of them successful. Next: the clients that send n.",
        "send n requests with n = 1 instead",
        (Needs.TOPOLOGY, Needs.CANARY),
        "every SGLang up to 0.5.23",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#9224 sglang#24223 sglang#26486 sglang#30723 sglang#40297 dynamo#14112"),
    ),
    Entry(
        "PD320",
        "vllm-side-channel",
        Severity.ERROR,
        "vLLM's NIXL side channel is not reachable at the address it advertises",
        "Each vLLM engine advertises VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT; the host is localhost unless set. Peers "
        'on other hosts then reach themselves: "Remote NIXL agent engine ID mismatch", and decode computes the prompt '
        "again. Two engines on one host with the same port collide in the same way. Next: the two variables on every "
        "engine.",
        "set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that the other engines reach",
        (),
        "vLLM with the NIXL connector",
        "public reports",
        "pdctl probes SGLang engines and its own; a vLLM engine has neither a bootstrap server nor /server_info",
        reports=cited("vllm#27083 srt-slurm#158 ray#60057"),
    ),
    Entry(
        "PD321",
        "vllm-handshake-hash",
        Severity.ERROR,
        "vLLM refuses the peer: the compatibility hash of the NIXL handshake differs",
        "vLLM hashes version, model and cache configuration and compares them in the handshake, on the first "
        "request. A difference is an error unless enforce_handshake_compat is off. It is the comparison SGLang "
        "lacks. Next: version and configuration of both engines.",
        "run the same vLLM version and cache settings on both roles",
        (),
        "vLLM 0.12 and later",
        "public reports",
        "pdctl probes SGLang engines and its own, and vLLM compares only while serving",
        reports=cited("vllm#29503 dynamo#10027 vllm#49230"),
    ),
    Entry(
        "PD322",
        "bootstrap-info-dropped",
        Severity.ERROR,
        "the frontend does not pass the bootstrap address on to decode",
        "Behind a global router, or with n > 1, Dynamo's SGLang backend was reported to wait for the prefill's "
        "first item and never send the bootstrap information, so every request hangs. Next: the frontend's log, and "
        "whether prefill has the request.",
        "update Dynamo and send n = 1",
        (),
        "Dynamo with SGLang, reported up to 2026",
        "public reports",
        "the frontend keeps no list of workers and ports that can be read; the canary of pdctl sends its own "
        "bootstrap fields, so the frontend never has to pass them on",
        reports=cited("dynamo#7897 dynamo#14112 dynamo#14098"),
    ),
    Entry(
        "PD323",
        "release-not-read",
        Severity.INFO,
        "{instance|an instance}: {observed|its release is not in the tables of pdctl}",
        "pdctl has tables of the flags, settings, log lines, routes and metrics of certain releases, read from their "
        "wheels. For any other release it uses those of the nearest older one. A newer release may have flags and "
        "lines that pdctl does not know, and faults that it does not name. Next: `pdctl dialect flags --version "
        "RELEASE` for what is assumed.",
        "update pdctl to a version that knows this release",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "releases newer than the newest in the tables of pdctl, or between two of them",
        "the releases pdctl has read (pdctl/engines/releases/sglang/releases.tsv)",
    ),
    Entry(
        "PD324",
        "decode-context-parallel-mismatch",
        Severity.ERROR,
        "--dcp-size is {observed|one number} on {instance|decode} and {expected|another} on {other|prefill}",
        "With decode context parallelism each rank holds a share of every page's tokens. The prefill can write to a "
        "decode of the same --dcp-size or, for models with latent attention (MLA), from --dcp-size 1 to a larger one; "
        "any other pair of sizes ends the first transfer with `Unsupported PD DCP topology`, from 0.5.17 on. Next: "
        "dcp_size in /server_info of both sides.",
        "start both roles with the same --dcp-size",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "0.5.17 and later; --dcp-size itself is in 0.5.15 and later",
        "sglang 0.5.17 to 0.5.23 source (disaggregation/common/conn.py requires_dcp_relayout)",
    ),
    Entry(
        "PD325",
        "allocation-policy-mismatch",
        Severity.ERROR,
        "--disaggregation-decode-allocation-policy is {observed|one policy} on {instance|decode} and "
        "{expected|another} on {other|prefill}: every room fails",
        "The policy says when decode reserves pages: early, or (prefill_complete) once the prefill has computed the "
        "prompt. Decode compares its own with the one the prefill registered, for every room, and fails each with "
        "`Disaggregation decode allocation policy mismatch`. Next: the flag on both roles; early is the default.",
        "start both roles with the same --disaggregation-decode-allocation-policy",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.LOG),
        "0.5.22 and later",
        "sglang 0.5.22 and 0.5.23 source (disaggregation/common/conn.py)",
    ),
    Entry(
        "PD326",
        "kv-checksum-one-side",
        Severity.WARNING,
        "--disaggregation-enable-kv-checksum is {observed|enabled} on {instance|decode} and {expected|disabled} on "
        "{other|prefill}",
        "The checksum of a room's pages travels in a metadata buffer of its own, and is compared only where both "
        "roles have one. With 0.5.21 and 0.5.22 a decode that alone has it enabled registers one buffer more than the "
        "prefill has, and the prefill fails with IndexError on the first room. From 0.5.23 on the prefill logs "
        "`registered N metadata buffers but this prefill has M` and copies those that both have: rooms work, and no "
        "page is checked. Next: the flag on both roles.",
        "start both roles with --disaggregation-enable-kv-checksum, or neither",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.LOG),
        "0.5.21 and later",
        "sglang 0.5.21 to 0.5.23 source (disaggregation/nixl/conn.py send_aux, common/conn.py)",
    ),
)
