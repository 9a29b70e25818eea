"""Transfer settings: which are wrong, and which are read by nobody."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from tests.cases import for_each
from tests.doctor.written import doubt, found, pair, topology

MOONCAKE = "transfer.backend=mooncake"
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@for_each(
    ("env", "severity"),
    [
        ({}, None),
        ({"UCX_TLS": "all"}, None),
        ({"UCX_TLS": "rc,cuda_copy,cuda_ipc"}, None),
        ({"UCX_TLS": "rc_x,cuda,tcp"}, None),
        ({"UCX_TLS": "tcp"}, ERROR),
        ({"UCX_TLS": "rc,sm,self"}, ERROR),
        ({"UCX_TLS": "cuda_copy,cuda_ipc,sm"}, WARNING),
        ({"UCX_TLS": "^cuda_copy"}, ERROR),
        ({"UCX_TLS": "^tcp"}, None),
        ({"UCX_TLS": ""}, None),
        ({"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}, WARNING),
        ({"UCX_NET_DEVICES": "mlx5_0:1,eth0"}, None),
        ({"UCX_NET_DEVICES": "all"}, None),
        ({"UCX_NET_DEVICES": "lo"}, None),
    ],
)
def test_what_ucx_can_work_with(env: dict[str, str], severity: Severity | None) -> None:
    facts = topology(*(f"roles.prefill.env.{name}={value!r}" for name, value in env.items()))
    assert [each.severity for each in found(facts, "PD407")] == ([severity] if severity else [])


def test_ucx_does_not_concern_mooncake_nor_a_cpu() -> None:
    tls = "transfer.env.UCX_TLS=tcp"
    assert not found(topology(tls, MOONCAKE), "PD407")
    assert not found(topology(tls, "engine.args.device=cpu"), "PD407")


@for_each(
    ("backend", "version", "prefill", "told"),
    [
        ("nixl", "0.5.23", "env MC_TE_METRIC", ["MC_TE_METRIC"]),
        ("nixl", "0.5.23", "env SGLANG_MOONCAKE_CUSTOM_MEM_POOL", []),
        ("nixl", "0.5.23", "env UCX_TLS", []),
        ("mooncake", "0.5.23", "env MC_TE_METRIC", []),
        ("mooncake", "0.5.23", "env UCX_TLS", ["UCX_TLS"]),
        ("mooncake", "0.5.23", "env SGLANG_DISAGGREGATION_NIXL_BACKEND", ["SGLANG_DISAGGREGATION_NIXL_BACKEND"]),
        ("mooncake", "0.5.23", "device", []),
        ("mooncake_tcp", "0.5.23", "device", ["--disaggregation-ib-device"]),
        ("nixl", "0.5.18", "device", ["--disaggregation-ib-device"]),
        ("nixl", "0.5.23", "device", []),
        ("nixl", "0.5.23", "device overruled", ["--disaggregation-ib-device"]),
    ],
)
def test_settings_nobody_reads(backend: str, version: str, prefill: str, told: list[str]) -> None:
    sets = [f"transfer.backend={backend}", f"engine.version={version}"]
    if prefill.startswith("env "):
        sets.append(f"roles.prefill.env.{prefill[4:]}=rc,cuda")
    else:
        sets.append("transfer.ib-devices=[mlx5_0]")
    if prefill.endswith("overruled"):
        sets.append("transfer.env.UCX_NET_DEVICES=all")
    facts = topology(*sets)
    assert [each.observed for each in found(facts, "PD411") if each.headline.startswith("prefill")] == told


def test_other_readers_of_the_same_variables_are_respected() -> None:
    facts = topology("transfer.env.MC_TE_METRIC=1", "engine.args.hicache-storage-backend=mooncake")
    assert not found(facts, "PD411")
    assert not found(
        topology(MOONCAKE, "transfer.env.UCX_TLS=rc", "transfer.env.NVSHMEM_REMOTE_TRANSPORT=ucx"), "PD411"
    )


@for_each(
    ("env", "told"),
    [
        ("", 0),
        ("MC_FORCE_MNNVL=1 SGLANG_MOONCAKE_CUSTOM_MEM_POOL=NVLINK", 0),
        ("MC_FORCE_MNNVL=1", 1),
        ("MC_FORCE_MNNVL=0", 0),
        ("MC_FORCE_MNNVL=1 MC_INTRANODE_NVLINK=1 SGLANG_MOONCAKE_CUSTOM_MEM_POOL=NVLINK", 1),
        ("MC_FORCE_MNNVL=1 MOONCAKE_PROTOCOL=efa", 2),
    ],
)
def test_mnnvl_settings_that_belong_together_or_exclude_each_other(env: str, told: int) -> None:
    assert len({each.observed for each in found(pair(env=env), "PD413")}) == told


@for_each(
    ("flags", "severity"),
    [("--page-size 1", WARNING), ("--page-size 64", None), ("--page-size $P", None), ("", INFO)],
)
def test_page_size_one_with_mooncake(flags: str, severity: Severity | None) -> None:
    sets = [] if flags else ["roles.prefill.page-size=null", "roles.decode.page-size=null"]
    facts = topology(*sets, MOONCAKE) if not flags else pair(flags, flags)
    assert {each.severity for each in found(facts, "PD410")} == ({severity} if severity else set())
    assert not found(topology("roles.prefill.page-size=1", "roles.decode.page-size=1"), "PD410")


def test_devices_must_be_among_the_hosts_own() -> None:
    hosts = "pools.hosts.nic.devices=[mlx5_0, mlx5_1]"
    told = found(topology("transfer.ib-devices=[mlx5_0, mlx5_7]", hosts), "PD401")
    assert [each.headline for each in told] == [
        "prefill and decode-0 name RDMA device mlx5_7, which is not there (found: mlx5_0, mlx5_1)"
    ]
    assert doubt(topology(hosts), "PD401") == "no devices are named in transfer.ib-devices"


def test_rails_are_as_many_on_both_sides() -> None:
    sets = ["pools.small.nic.devices=[mlx5_0]", "pools.small.gpu-memory=80GB", "roles.decode.pool=small"]
    sets += ["roles.prefill.pool=hosts", "pools.hosts.nic.devices=[mlx5_0, mlx5_1]"]
    (said,) = found(topology(*sets), "PD414")
    assert (said.observed, said.expected) == ("mlx5_0", "mlx5_0, mlx5_1")
