"""The transfer libraries' own complaints: mooncake (glog), NIXL, UCX. The first is the cause, the rest echo it."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker


def _row(id: str, literal: str, pattern: str, example: str, cause: str, backend: str = "mooncake") -> Row:
    return Row(
        id, Speaker.SGLANG, Level.ERROR, "", literal.encode(), pattern, example, backend=backend, cause=cause
    )  # fmt: skip


# Not in the sets we recorded (no RDMA device there); the texts are from the libraries' sources and users' reports.
ROWS = (
    _row(
        "mooncake-register-refused", "Failed to register memory ",
        r"Failed to register memory (?P<pointer>\S+): (?P<reason>.*)",
        "E1121 02:01:19.957741 25262 rdma_context.cpp:187] Failed to register memory 0x7f0c40000000: Bad address [14]",
        "PD405",
    ),
    _row(
        "mooncake-dma-buf-needed", "DMA BUF supported required for GPU RDMA",
        r"DMA BUF supported required for GPU RDMA",
        "E1121 02:01:19.957741 25262 rdma_context.cpp:201] DMA BUF supported required for GPU RDMA without "
        "nvidia-peermem",
        "PD405",
    ),
    _row(
        "mooncake-qp-refused", "Failed to modify QP to RTR", r"Failed to modify QP to RTR(?P<reason>.*)",
        "E1121 02:01:29.957741 25262 rdma_endpoint.cpp:411] Failed to modify QP to RTR, check mtu, gid, peer lid, peer "
        "qp num: Connection timed out [110]",
        "PD403",
    ),
    _row(
        "mooncake-gid-null", "GID is NULL, please check your GID index", r"GID is NULL, please check your GID index",
        "E1121 02:01:19.957741 25262 rdma_context.cpp:402] GID is NULL, please check your GID index by specifying "
        "MC_GID_INDEX",
        "PD403",
    ),
    _row(
        "mooncake-devices-differ", "received packet mismatch", r"received packet mismatch(?P<reason>.*)",
        "E1121 02:01:29.957741 25262 rdma_endpoint.cpp:233] received packet mismatch, local.local_nic_path: "
        "127.0.0.1:15794@mlx5_0, local.peer_nic_path: , peer.local_nic_path: 127.0.0.1:15795@mlx5_4",
        "PD414",
    ),
    _row(
        "mooncake-endpoint-inactive", "Cannot make connection for endpoint",
        r"Cannot make connection for endpoint: (?P<endpoint>[^,]+), mark it inactive",
        "E1121 02:01:29.957741 25262 worker_pool.cpp:311] Cannot make connection for endpoint: 127.0.0.1:15795@mlx5_4, "
        "mark it inactive",
        "PD409",
    ),
    _row(
        "mooncake-sync-timeout", "Sync batch data transfer timeout after ",
        r"Sync batch data transfer timeout after (?P<nanoseconds>\d+)",
        "E1121 02:01:59.957741 25262 transfer_engine_py.cpp:512] Sync batch data transfer timeout after "
        "30000000000ns",
        "PD412",
    ),
    _row(
        "mooncake-tcp-write", "Session::writeBody failed", r"Session::writeBody failed\. Error: (?P<reason>.*)",
        "E1121 02:01:29.957741 25262 tcp_transport.cpp:141] Session::writeBody failed. Error: Bad address (value: 14)",
        "PD405",
    ),
    _row(
        "mooncake-nvlink-address", "not found!", r"Requested address (?P<pointer>\S+) to \S+ not found!",
        "E1121 02:01:29.957741 25262 nvlink_transport.cpp:402] Requested address 0x7f0c40000000 to 0x7f0c50000000 not "
        "found!",
        "PD413",
    ),
    _row(
        "mooncake-no-hca", "Found 0 HCAs", r"Found 0 HCAs",
        "I1121 02:01:19.957741 25262 topology.cpp:188] Found 0 HCAs", "PD401",
    ),
    _row(
        "mooncake-tcp-chosen", "installTransport, type=tcp", r"installTransport, type=tcp",
        "I1121 02:01:19.957741 25262 transfer_engine.cpp:91] installTransport, type=tcp", "PD406",
    ),
    _row(
        "ucx-backend-error", "createBackend: backend 'UCX' encountered error",
        r"createBackend: backend 'UCX' encountered error(?P<reason>.*)",
        "createBackend: backend 'UCX' encountered error NIXL_ERR_BACKEND", "PD407", "nixl",
    ),
    _row(
        "ucx-no-cuda", "UCX CUDA support was not found!", r"UCX CUDA support was not found!",
        "UCX CUDA support was not found! ... VRAM memory is detected as host", "PD407", "nixl",
    ),
    _row(
        "nixl-exception", "NIXL_ERR_", r"nixl\w*\.(?P<error>[\w.]+): (?P<reason>NIXL_ERR_.*)",
        "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT", "PD409", "nixl",
    ),
    _row(
        "nixl-missing", "ImportError: Please install NIXL by following",
        r"ImportError: Please install NIXL by following",
        "ImportError: Please install NIXL by following the instructions at "
        "https://github.com/ai-dynamo/nixl/blob/main/README.md to run SGLang with NixlTransferEngine.",
        "PD408", "nixl",
    ),
)  # fmt: skip
