"""The failure modes collected from public reports: eighty symptoms, where they were reported, and the code that stands
for each. A row without a thread was found in released sources or published samples."""

from __future__ import annotations

from typing import NamedTuple


class Symptom(NamedTuple):
    what: str
    codes: tuple[str, ...]
    reports: tuple[str, ...] = ()


def symptom(what: str, codes: str, reports: str = "") -> Symptom:
    return Symptom(what, tuple(codes.split()), tuple(reports.split()))


SYMPTOMS: tuple[Symptom, ...] = (
    # Bootstrap, addresses, ports.
    symptom("every request to the second prefill hangs", "PD201", "sglang#5704 sglang#8644"),
    symptom(
        "decode cannot fetch the prefill's layout", "PD202 PD205 PD206 PD213", "Mooncake#1207 sglang#11747 sglang#9266"
    ),
    symptom("decode dials 127.0.0.1", "PD208", "sglang#11747 sglang#5422 dynamo#12026"),
    symptom("503 not fully registered for good", "PD209 PD212", "sglang#27608 sglang#25125"),
    symptom("a prefill of several nodes never registers", "PD209 PD217", "srt-slurm#121 sglang#36234"),
    symptom("address already in use", "PD204 PD218", "ishandhanani/srt-slurm#147 sglang#20952 ray#60057 ray#63741"),
    symptom("is there a bootstrap server on decode", "PD207", "dynamo#4855"),
    symptom("discovered pods without an annotation", "PD214 PD215", "sglang#7361 llm-d#1709 aibrix#1684"),
    symptom("discovery puts the router into another mode", "PD618", "smg#2372"),
    symptom("the router will not start", "PD220 PD618", "sglang#12535 miles#3133"),
    symptom("decode runs out of ports while polling a rank", "PD317", "sglang#19305 sglang#19271"),
    symptom("bootstrap on the Rust server's port", "PD219", "sglang#33125"),
    symptom("rooms die after a prefill was replaced behind a Service", "PD211", "sglang#34289 sglang#33789"),
    symptom("some replicas never get traffic", "PD216"),
    # Prefill against decode.
    symptom("page size mismatch", "PD302", "sglang#14439 sglang#14474"),
    symptom("KV dtype or layout mismatch", "PD303 PD304", "sglang#37838"),
    symptom("other attention TP on a GQA model", "PD305", "sglang#15674 sglang#5922 sglang#19890"),
    symptom("other attention TP on a hybrid model", "PD306", "llm-d#2433 llm-d#2442"),
    symptom("NIXL_ERR_NOT_FOUND with asymmetric widths", "PD306", "sglang#31295 sglang#24648 sglang#24188"),
    symptom("speculation on one side", "PD308", "sglang#17212 sglang#33877 sglang#23958 sglang#9976 sglang#23918"),
    symptom("warm-up hangs with DP attention and drafts", "PD317", "sglang#32209 sglang#32527"),
    symptom("combinations that fail late", "PD318", "sglang#36140 sglang#31139 sglang#39378 sglang#12121 sglang#10124"),
    symptom("Mamba state of another dtype", "PD312", "sglang#36371"),
    symptom("slots that do not come out", "PD502", "sglang#12432 sglang#6860 bytedance-iaas/sglang#457"),
    symptom("other context length", "PD307", "sglang#23380"),
    symptom("roles swapped", "PD301", "sglang#23272"),
    symptom("other versions", "PD310", "sglang#34289 vllm#51777"),
    symptom("plain data parallel and the attention rank", "PD313", "sglang#29725"),
    symptom("round robin means something else", "PD313", "sglang#16110 sglang#16080 sglang#13052 sglang#10174"),
    symptom("n > 1 hangs or mixes", "PD319", "sglang#9224 sglang#24223 sglang#26486 sglang#30723 sglang#40297"),
    symptom("one room twice", "PD707", "sglang#40125 kthena#1423 kthena#1424"),
    symptom("flags refused after the model has loaded", "PD318", "sglang#17598 sglang#20241 sglang#25873 sglang#26316"),
    # Mooncake and RDMA.
    symptom("no GPUDirect", "PD405", "sglang#6193 Mooncake#351 Mooncake#281 sglang#6753 Mooncake#751 sglang#6691"),
    symptom("memory cannot be registered", "PD404", "sglang#6894"),
    symptom("TCP without a word", "PD401 PD406", "sglang#17598"),
    symptom("GID or MTU wrong on RoCE", "PD403", "sglang#30737 Mooncake#204 Mooncake#1766 Mooncake#1066"),
    symptom("NICs of the two sides do not pair", "PD414", "sglang#7500 Mooncake#549 Mooncake#1151 sglang#27730"),
    symptom("it might be dead, and is not", "PD409", "sglang#10560 Mooncake#851 sglang#7338 sglang#15665 sglang#12688"),
    symptom("GPU pointers on the TCP path", "PD406", "sglang#7118 sglang#7338 sglang#6548"),
    symptom("batch transfer times out under load", "PD412", "sglang#27730 sglang#23272 sglang#25937"),
    symptom("page size one", "PD410", "Mooncake#522 sglang#5450"),
    symptom("MNNVL and EFA memory", "PD413", "Mooncake#481 Mooncake#965 Mooncake#1627 Mooncake#1639 sglang#11321"),
    # NIXL and UCX.
    symptom("UCX environment", "PD407", "sglang#40641 TensorRT-LLM#18373 sglang#27894 nixl#503 nixl#149 dynamo#979"),
    symptom("NIXL is not available", "PD408", "dynamo#3054 vllm#51777 dynamo#6087"),
    symptom("host-staged copies", "PD412", "dynamo#1314 nixl#366 sglang#6320 vllm#26382 llm-d#2370"),
    symptom("a peer is forgotten after one error", "PD409", "nixl#1983 vllm-backport#33 LightLLM#1470 nixl#656"),
    symptom("a restarted prefill is not found again", "PD211", "nixl#795 sglang#10365 sglang#6215 sglang#16903"),
    symptom("decode is not told of a failure", "PD317", "sglang#36033 sglang#30327 sglang#30329 sglang#36108"),
    symptom("no bootstrap timeout", "PD317", "sglang#34692"),
    symptom("an abort ends the bootstrap thread", "PD317 PD710", "sglang#30301 sglang#30352 sglang#30685"),
    symptom("finished transfers time out", "PD317", "sglang#32267"),
    symptom("native crashes", "PD317", "sglang#35189 sglang#23489 sglang#23499 nixl#2102 nixl#1986 vllm#49238"),
    symptom("stalls after the first chunk", "PD415", "sglang#6320"),
    # Capacity.
    symptom(
        "bootstrapping times out under load", "PD501", "sglang#10110 sglang#8177 sglang#9266 sglang#8744 sglang#10204"
    ),
    symptom("collapse that does not recover", "PD507", "sglang#9266 sglang#8744 sglang#12355"),
    symptom("decode out of memory, requests retracted", "PD502", "sglang#6857 sglang#6860 sglang#7196 sglang#19881"),
    symptom("DeepEP dispatch assertion", "PD503", "DeepEP#165 sglang#28985 sglang#6081 sglang#29942 sglang#14171"),
    symptom("prefill out of memory", "PD506", "sglang#7353 sglang#7256 sglang#38094"),
    symptom("slower than one kind of instance", "PD501 PD506", "sglang#5450 Mooncake#62"),
    symptom("nodes that do not form an instance", "PD504 PD509", "sglang#4978 sglang#3226 sglang#7478 sglang#3467"),
    symptom("strangers at the bootstrap server", "PD614", "sglang#39428 sglang#9931"),
    # Router, lifecycle, correctness, Kubernetes.
    symptom(
        "all circuits open from the first request", "PD601", "InferenceX#2255 sglang#12355 sglang#13894 sglang#8557"
    ),
    symptom("a prefill that only seems dead", "PD601 PD703", "sglang#31206"),
    symptom("one client's long prompts open the breakers", "PD601", "sglang#25811 sglang#29017"),
    symptom("the client waits minutes for a 400", "PD612 PD713", "sglang#9726 sglang#29017 aibrix#2289 llm-d#2433"),
    symptom("a prompt too long is answered with noise", "PD505", "sglang#30233 sglang#30551 sglang#34208 sglang#32605"),
    symptom("quality falls with requests served", "PD611 PD711", "sglang#23020 sglang#22716 sglang#17259 sglang#24527"),
    symptom("no pair can be selected", "PD603", "sglang#8557 aibrix#1351"),
    symptom("decode serves alone", "PD620", "llm-d-router#2521 llm-d-router#2427"),
    symptom("200 with half a stream", "PD610", "sglang#32267 sglang#7338 vllm-ascend#12168 vllm#52276"),
    symptom("clients leave, slots stay", "PD613 PD706", "sglang#8177 sglang#6258 sglang#9817 sglang#36707 smg#2114"),
    symptom("prefill dies, decode follows", "PD705", "sglang#12779 sglang#31144 sglang#16903"),
    symptom("a busy prefill is taken for dead", "PD617", "sglang#6263 sglang#7998"),
    symptom("probes that kill or lie", "PD607 PD605", "sglang#8115 sglang#8063 sglang#8444 dynamo#2137 dynamo#2124"),
    symptom("rollouts drop requests", "PD609", "smg#1172 dynamo#3508 dynamo#11173 llm-d#2444"),
    symptom("manifests that drift or do not expand", "PD616 PD619 PD621", "dynamo#8386 LMCache#990 llm-d#2110"),
    symptom("vLLM's side channel", "PD320", "vllm#27083 srt-slurm#158 ray#60057"),
    symptom("vLLM's handshake hash", "PD321", "vllm#29503 dynamo#10027 vllm#49230"),
    symptom("vLLM's expired KV", "PD508", "vllm#21570 vllm#25562 vllm#25897 vllm#41269 vllm#32340"),
    symptom("Dynamo without bootstrap information", "PD322", "dynamo#7897 dynamo#14112 dynamo#14098"),
)
