"""The network under the KV cache: RDMA devices, UCX, Mooncake and NIXL."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD401",
        "hca-missing",
        Severity.ERROR,
        "{instance|an engine} names RDMA device {observed|X}, which is not there (found: {expected|others})",
        "--disaggregation-ib-device must name devices of /sys/class/infiniband. Releases before 0.5.9 accept a wrong "
        "name, and Mooncake silently falls back to TCP: everything works, at a fraction of the speed. Later releases "
        "refuse to start. In a container the device must also be mounted (/dev/infiniband). A name with a port "
        "(mlx5_0:1) belongs in UCX_NET_DEVICES, not here. Next: `ls /sys/class/infiniband` in the engine's container.",
        "set --disaggregation-ib-device to devices listed in /sys/class/infiniband, or drop it where none is listed",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang; silent before 0.5.9, refused since",
        "sglang 0.5.8 to 0.5.23 source",
        reports=cited("sglang#17598"),
    ),
    Entry(
        "PD402",
        "hca-port-down",
        Severity.ERROR,
        "RDMA device {device|X} is not active: its port is {observed|DOWN}",
        "A device whose port is down or still initialising is listed like any other. Mooncake and UCX leave it out "
        "or fail on it when the first transfer picks it, and only on that rail. Next: cable, switch port and, for "
        "InfiniBand, the subnet manager.",
        "ibstat {device}",
        (Needs.HOST,),
        "every transfer library",
        "Linux sysfs",
    ),
    Entry(
        "PD403",
        "roce-gid",
        Severity.ERROR,
        "RoCE device {device|X} has no usable GID: {observed|it has none, or link-local ones}",
        "On Ethernet an RDMA connection needs a routable RoCE v2 GID with an IP address, at the same index on both "
        'ends; the automatic choice may find none or a link-local one (fe80). Then connections fail with "Failed to '
        'modify QP to RTR, check mtu, gid, peer lid" or "GID is NULL, please check your GID index by specifying '
        'MC_GID_INDEX". A different MTU on the two ends gives the same message. Next: `show_gids` on both hosts, and '
        "the IP address of the device's interface.",
        "give the interface of {device|the device} an IP address, or set MC_GID_INDEX to a RoCE v2 entry that has one",
        (Needs.HOST,),
        "Mooncake on RoCE, every release",
        "public reports",
        reports=cited("sglang#30737 Mooncake#204 Mooncake#1766 Mooncake#1066 Mooncake#1026 ATOM#1748 Mooncake#1597"),
    ),
    Entry(
        "PD404",
        "memlock-low",
        Severity.ERROR,
        "{instance|an engine} may lock {observed|64 KiB} of memory: registering the KV cache for RDMA will fail",
        "RDMA pins the whole KV pool. If the limit is lower, or the NIC bounds a region (max_mr_size) or has leaked "
        'keys of crashed processes, registration fails with "Failed to register memory", Invalid argument [22], '
        "Input/output error [5] or Resource temporarily unavailable [11]. Next: `ulimit -l` in the engine's "
        "container, then `ibv_devinfo -v`.",
        "run ulimit -l unlimited in the shell that starts {instance|it}, and start it again",
        (Needs.HOST,),
        "every transfer library over RDMA",
        "Mooncake documentation; public reports",
        reports=cited("sglang#6894"),
    ),
    Entry(
        "PD405",
        "no-gpudirect",
        Severity.ERROR,
        "no GPUDirect RDMA on this host: {observed|nvidia_peermem is not loaded}",
        "To send straight from GPU memory the NIC's driver needs nvidia_peermem, or dma-buf support in kernel, driver "
        'and library. Without either, Mooncake fails to start with "Failed to register memory ...: Bad address [14]" '
        'and "Mooncake memory registration failed", newer builds with "DMA BUF supported required for GPU RDMA '
        'without nvidia-peermem". Next: `lsmod | grep peermem` on the host, not in the container.',
        "modprobe nvidia_peermem",
        (Needs.HOST,),
        "every transfer library over RDMA",
        "public reports",
        reports=cited("sglang#6193 Mooncake#351 Mooncake#281 sglang#6753 Mooncake#751 sglang#6691 Mooncake#3538"),
    ),
    Entry(
        "PD406",
        "silent-tcp",
        Severity.WARNING,
        "{instance|an engine} moves KV cache over TCP: {observed|no RDMA device was found}",
        'Mooncake falls back to TCP when it finds no device, and says so in one line only ("installTransport, '
        'type=tcp", "Found 0 HCAs"). With GPU memory the TCP path was also reported to fail outright: '
        '"Session::writeBody failed. Error: Bad address". Without --disaggregation-ib-device SGLang lets Mooncake '
        "discover devices by itself and prints a warning. If TCP is intended, say so: mooncake_tcp (0.5.13 and "
        "later), or NIXL. Next: the first lines of the transfer engine in the log.",
        "set --disaggregation-ib-device, or --disaggregation-transfer-backend mooncake_tcp if TCP is intended",
        (Needs.HOST, Needs.LOG),
        "every SGLang with mooncake",
        "sglang 0.5.8 to 0.5.23 source; public reports",
        reports=cited("sglang#17598 sglang#7118 sglang#7338 sglang#6548"),
    ),
    Entry(
        "PD407",
        "ucx-environment",
        Severity.ERROR,
        "{instance|an engine}: {variable|a UCX variable} keeps UCX from working: {reason|it leaves out what is needed}",
        "NIXL moves data with UCX, and UCX obeys its environment. UCX_TLS without cuda_copy or cuda_ipc means no GPU "
        'memory ("UCX CUDA support was not found! ... VRAM memory is detected as host"); it is often inherited from a '
        "Slurm or MPI profile. UCX_NET_DEVICES with RDMA devices alone takes away the TCP endpoint UCX needs for "
        "itself, and the agent fails with NIXL_ERR_BACKEND at creation. From 0.5.23 on UCX_NET_DEVICES, if set, also "
        "overrides --disaggregation-ib-device. Next: `env | grep UCX_` where the engine runs.",
        "{fix|unset UCX_TLS UCX_NET_DEVICES}",
        (Needs.TOPOLOGY, Needs.HOST),
        "NIXL with UCX, every release",
        "public reports; sglang 0.5.23 source",
        reports=cited("sglang#40641 TensorRT-LLM#18373 sglang#27894 nixl#503 nixl#149 dynamo#979 dynamo#329"),
    ),
    Entry(
        "PD408",
        "nixl-missing",
        Severity.ERROR,
        "NIXL cannot be used here: {observed|no build, or two that do not match}",
        "The package `nixl` picks a build for one CUDA version from what PyTorch reports; the wheels nixl, nixl-cu12 "
        "and nixl-cu13 can drift apart, and an image may ship a version other than the one it pins. SGLang then ends "
        'with "NIXL is not available" or an import error that names the wrong CUDA library. Next: `pip list | grep '
        "nixl` in the environment of both roles: VERSION is that of the other one.",
        "pip install --force-reinstall nixl-cu12==VERSION",
        (Needs.HOST, Needs.LOG),
        "every SGLang with nixl",
        "public reports",
        reports=cited("dynamo#3054 vllm#51777 dynamo#6087"),
    ),
    Entry(
        "PD409",
        "transfer-error",
        Severity.ERROR,
        "{instance|prefill}: a KV transfer failed: {observed|see the first transfer error}",
        'The transfer layer reported an error of its own. It is the cause; "Failed to get kvcache from prefill '
        'instance, it might be dead", "Decode instance could be dead, remote mooncake session is not alive" and '
        '"Failed due to an unknown reason from another rank" are echoes of it, written while every process lives. '
        "Look for the earliest transfer-engine error on prefill before them. Mooncake blacklists a peer after one "
        "failed transfer: before 0.5.13 for good; later releases probe it again. NIXL drops the peer's agent after "
        "one endpoint error (NIXL_ERR_REMOTE_DISCONNECT, then NIXL_ERR_NOT_FOUND for everything to that peer). If "
        "only one peer is affected, suspect its pair of NICs or a restart; if all are, this host's NIC. Next: the "
        "first error line of the transfer engine on prefill.",
        "grep -m1 -nE 'transfer_engine|rdma_|NIXL_ERR|transport error' {file}",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; public reports",
        reports=cited(
            "sglang#10560 Mooncake#851 sglang#7338 sglang#15665 sglang#12688 sglang#30609 nixl#1983 "
            "vllm-backport#33 LightLLM#1470 nixl#656"
        ),
    ),
    Entry(
        "PD410",
        "page-size-one",
        Severity.WARNING,
        "{instance|an engine} uses {observed|page size 1} with {backend|mooncake}: KV cache moves in tiny blocks",
        "Every page of every layer is a block of its own unless neighbouring pages happen to be contiguous. At page "
        "size 1, SGLang's default for most attention backends, blocks are a few kilobytes long and Mooncake was "
        "reported to fall to tens of MB/s once the pool is fragmented, typically on the second benchmark run. Next: "
        "page_size in /server_info; MC_TE_METRIC=1 prints the throughput.",
        "set --page-size {expected|64} on both roles",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang with mooncake",
        "public reports",
        reports=cited("Mooncake#522 sglang#5450"),
    ),
    Entry(
        "PD411",
        "dead-transfer-settings",
        Severity.WARNING,
        "{instance|an engine}: {observed|a setting} does nothing with the {backend|chosen} backend",
        "Settings of another transfer backend are read by nobody and mislead whoever reads the file: Mooncake's "
        "MC_* with NIXL, UCX_* with Mooncake, --disaggregation-ib-device with mooncake_tcp or, before 0.5.23, with "
        "NIXL. Copied recipes are full of them. Next: which backend was meant.",
        "remove {observed|the setting}",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; published recipes",
    ),
    Entry(
        "PD412",
        "slow-transfer",
        Severity.WARNING,
        "{instance|an engine}: KV cache moves at {observed|a crawl}; {expected|what the network carries} is expected",
        "The transfer works, on a slower path than the hardware has: through host memory instead of GPU to NIC, over "
        'TCP, over a NIC on the other socket, or congested ("Sync batch data transfer timeout after 30000...ns"). UCX '
        "chooses by itself; containers without a shared IPC namespace lose cuda_ipc between instances on one host. "
        "Next: UCX_PROTO_INFO=y for one transfer, or MC_TE_METRIC=1.",
        "restart prefill with UCX_PROTO_INFO=y (nixl) or MC_TE_METRIC=1 (mooncake) and read in its log which path it "
        "takes",
        (Needs.HOST, Needs.CANARY, Needs.LOG),
        "every transfer library",
        "public reports",
        reports=cited("dynamo#1314 nixl#366 sglang#6320 vllm#26382 llm-d#2370 sglang#27730 sglang#23272 sglang#25937"),
    ),
    Entry(
        "PD413",
        "mnnvl-settings",
        Severity.ERROR,
        "{instance|an engine}: {observed|MNNVL settings that exclude each other}",
        "On NVL72 racks Mooncake can send over NVLink between hosts, if the KV cache lies in fabric memory: "
        "MC_FORCE_MNNVL needs SGLANG_MOONCAKE_CUSTOM_MEM_POOL, excludes MC_INTRANODE_NVLINK, and cannot be used "
        'with MOONCAKE_PROTOCOL=efa, whose adapters refuse such memory. Otherwise: "nvlink_transport.cpp: '
        'Requested address ... not found!", a hang, or a refused pool. NVLink is also chosen when no HCA is '
        'visible ("Using cross-node NVLink transport"). Next: the environment of both roles, then IMEX on the '
        "hosts.",
        "{fix|set MC_FORCE_MNNVL and SGLANG_MOONCAKE_CUSTOM_MEM_POOL on both roles or on neither}",
        (Needs.TOPOLOGY, Needs.HOST),
        "Mooncake on GB200 and GB300, and on EFA",
        "public reports; sglang 0.5.3 to 0.5.23 source",
        reports=cited(
            "Mooncake#481 Mooncake#965 Mooncake#1627 Mooncake#1639 vllm#51518 Mooncake#3031 sglang#11321 sglang#17866"
        ),
    ),
    Entry(
        "PD414",
        "ib-devices-differ",
        Severity.WARNING,
        "RDMA devices differ: {instance|decode} has {observed|one list}, but {other|prefill} has {expected|another}",
        'The two ends pair their devices. Different names, numbers or rails give "received packet mismatch, '
        'local.local_nic_path ... peer_nic_path: (empty)" and "Cannot make connection for endpoint, mark it '
        'inactive", on some pairs only. Next: the device lists of both roles; as a test, one device on each side.',
        "give both roles the same list of devices in --disaggregation-ib-device",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "Mooncake, many releases",
        "public reports",
        reports=cited("sglang#7500 Mooncake#549 Mooncake#1151 sglang#27730 Mooncake#2684"),
    ),
    Entry(
        "PD415",
        "nixl-stalls-after-first-chunk",
        Severity.ERROR,
        "requests longer than one prefill chunk hang with cuda_ipc",
        "An old NIXL build stopped after the first chunk of a prompt longer than --chunked-prefill-size when both "
        "instances share a host. Short prompts work, so every smoke test passes. Next: try one prompt longer than a "
        "chunk.",
        "update NIXL",
        (),
        "a NIXL build of May 2025",
        "public report",
        "the affected builds are known by commit only and no host reports that",
        reports=cited("sglang#6320"),
    ),
    Entry(
        "PD416",
        "environment-setting",
        Severity.WARNING,
        "{instance|an engine}: {observed|nothing reads an environment variable, or its value is not valid}",
        "Nothing reports a mistake in an environment variable: a name that nothing reads is ignored, a value that "
        "does not parse is replaced by the default with at most one Python warning, and a variable of another release "
        "does nothing. Two limits can undo each other, such as heartbeats that would notice a death only after its "
        "rooms have timed out. Next: the variable's row in docs/sglang.md.",
        "{fix|set the variable to a value that docs/sglang.md allows}",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; the names Mooncake 0.3.13 reads",
    ),
)
