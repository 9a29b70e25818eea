from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import pdctl
from pdctl.errors import ExitCode, TopologyError
from pdctl.topology.diagnostic import Code, Diagnostic, ProblemReport
from pdctl.topology.resolve import MAX_BYTES, load, read_file, topology_file

from .conftest import ROOT, Write


def refused(*args: object, **kwargs: object) -> list[Diagnostic]:
    with pytest.raises(TopologyError) as caught:
        load(*args, **kwargs)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.USAGE
    return [found for found in caught.value.diagnostics if isinstance(found, Diagnostic)]


def test_the_smallest_topology_has_every_default(write: Write) -> None:
    topology = load([write(name="My_Run.yaml")])
    assert topology.name == "my-run"
    assert topology.engine.kind == "embedded"
    assert [(role.name, role.instances, role.tp, role.pool) for role in topology.roles] == [
        ("prefill", 1, 1, "default"),
        ("decode", 1, 1, "default"),
    ]
    assert (topology.router.host, topology.router.port, topology.router.policy) == ("127.0.0.1", 8000, "round_robin")
    assert topology.ports == (30000, 8998, 20000, 32)
    assert (topology.readiness.timeout, topology.readiness.restart, topology.readiness.max_restarts) == (
        1800,
        "keep-serving",
        3,
    )
    assert topology.pool("default").gpus_per_host == 8
    assert topology.workload is None
    assert topology.slo is None
    assert topology.targets.slurm == {}
    assert topology.transfer.backend is None


def test_quantities_come_in_base_units(write: Write) -> None:
    topology = load(
        [
            write(
                """
                pools:
                  h100: {gpu-memory: 80GiB, nic: {speed: 400Gbps, devices: [mlx5_0, mlx5_1]}}
                readiness: {timeout: 1h30m, interval: 250ms, restart: {policy: all, backoff: 2s}}
                slo: {ttft: 2s, tpot: 40ms}
                targets: {slurm: {time: 8h}, kubernetes: {shm: 16Gi}}
                """
            )
        ]
    )
    pool = topology.pools[0]
    assert (pool.gpu_memory, pool.nic_speed, pool.nic_count) == (80 << 30, 400 * 10**9, 2)
    assert (topology.readiness.timeout, topology.readiness.interval) == (5400, 0.25)
    assert (topology.readiness.restart, topology.readiness.backoff) == ("all", 2)
    assert topology.slo == (2, pytest.approx(0.04))
    assert topology.targets.slurm["time"] == 28800
    assert topology.targets.kubernetes["shm"] == 16 << 30
    assert topology.prefill.pool == "h100", "the only pool is everyone's"
    assert topology.router.host == "0.0.0.0", "clients of a cluster are elsewhere"


def test_restart_may_be_the_policy_alone(write: Write) -> None:
    assert load([write("readiness: {restart: instance}")]).readiness.restart == "instance"


def test_flags_keep_their_types_and_environment_its_spelling(write: Write) -> None:
    topology = load(
        [
            write(
                """
                engine:
                  args: {trust-remote-code: true, moe-dense-tp-size: 1, schedule-conservativeness: 0.30, lora: [a, b]}
                  env: {NCCL_DEBUG: INFO, LEVEL: 010, RATE: 1.50}
                """.replace("010", '"010"')
            )
        ]
    )
    assert topology.engine.args == {
        "trust-remote-code": True,
        "moe-dense-tp-size": 1,
        "schedule-conservativeness": 0.3,
        "lora": ("a", "b"),
    }
    assert topology.engine.env == {"NCCL_DEBUG": "INFO", "LEVEL": "010", "RATE": "1.50"}


def test_overlays_merge_maps_and_replace_the_rest(write: Write) -> None:
    base = write("pools: {p: {gpus-per-host: 4, nic: {devices: [a, b]}}}\nengine: {args: {one: 1, two: 2}}")
    site = write("pools: {p: {nic: {devices: [c]}}}\nengine: {args: {two: 3}}", "site.yaml", bare=True)
    last = write("engine: {args: {one: null}}\nroles: {decode: {instances: 2}}", "last.yaml", bare=True)
    topology = load([base, site, last], ["roles.decode.instances=3"])
    assert topology.pools[0].gpus_per_host == 4
    assert topology.pools[0].nic_devices == ("c",)
    assert topology.engine.args == {"two": 3}, "null takes a key out again"
    assert topology.decode.instances == 3
    assert topology.spans["pools.p.nic.devices"].file == str(site)
    assert topology.spans["roles.decode.instances"].file == "--set"


def test_null_restores_the_default_but_not_a_required_key(write: Write) -> None:
    base = write("router: {port: 9000}")
    assert load([base], ["router.port=null"]).router.port == 8000
    assert load([base], ["router=null"]).router.port == 8000
    assert [found.code for found in refused([base], ["roles.prefill=null"])] == [Code.MISSING_KEY]


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("name=other", "name", "other"),
        ("roles.prefill.instances=2", "prefill.instances", 2),
        ("ports.http=31000", "ports.http", 31000),
        ("router={port: 8001, policy: random}", "router.policy", "random"),
        ("transfer.ib-devices=[a, b]", "transfer.ib_devices", ("a", "b")),
        ("transfer.ib-devices=auto", "transfer.ib_devices", "auto"),
        ("engine.env.A=b=c", "engine.env", {"A": "b=c"}),
        ('engine.env.A=""', "engine.env", {"A": ""}),
        ("engine.args.x= 5", "engine.args", {"x": 5}),
    ],
)
def test_set_reads_its_value_as_yaml(write: Write, text: str, path: str, value: object) -> None:
    found: object = load([write()], [text])
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def test_set_takes_a_key_with_dots_in_quotes(write: Write) -> None:
    topology = load([write()], ['pools.p.labels."node.kubernetes.io/type"=h100'])
    assert topology.pools[0].labels == {"node.kubernetes.io/type": "h100"}


def test_extension_keys_are_ignored_and_anchors_work(write: Write) -> None:
    text = """
        x-common: &common {instances: 2, tp: 4, x-note: anything, env: {A: "1"}}
        roles:
          prefill: {<<: *common, tp: 2}
          decode: {<<: *common}
        x-more: ["${UNSET}"]
        engine: {kind: sglang, x-why: {tp: nonsense}}
        model: {path: org/name}
        """
    topology = load([write(text)], environ={})
    assert [(role.instances, role.tp, role.env) for role in topology.roles] == [(2, 2, {"A": "1"}), (2, 4, {"A": "1"})]


def test_one_wrong_anchor_is_one_problem(write: Write) -> None:
    text = """
        x-common: &common {instances: none}
        roles: {prefill: {<<: *common}, decode: *common}
        """
    found = refused([write(text)])
    assert {each.spans[0][0].line for each in found} == {3}
    assert len({each.message for each in found}) == len(found) == 2, "said once for each key it reaches"


def test_variables_take_the_type_of_their_key(write: Write) -> None:
    path = write('router: {port: "${PORT:-8100}", host: "${HOST}"}\nname: run-${ID}')
    topology = load([path], environ={"HOST": "0.0.0.0", "ID": "7"})
    assert (topology.router.port, topology.router.host, topology.name) == (8100, "0.0.0.0", "run-7")
    assert load([path], environ={"HOST": "h", "ID": "a", "PORT": "9"}).router.port == 9


def test_a_variable_may_be_text_that_looks_otherwise(write: Write) -> None:
    topology = load([write('targets: {slurm: {account: "${A}"}}\nengine: {env: {B: "${A}"}}')], environ={"A": "no"})
    assert topology.targets.slurm["account"] == "no"
    assert topology.engine.env == {"B": "no"}


def test_the_environment_is_the_process_own_by_default(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_TEST_NAME", "from-outside")
    assert load([write("name: ${PDCTL_TEST_NAME}")]).name == "from-outside"


def test_paths_start_at_the_file_that_has_them(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write("engine: {kind: sglang}\nmodel: {path: org/name, config: c/config.json}", "a/t.yaml")
    overlay = write("model: {path: ../weights}", "b/o.yaml", bare=True)
    assert load([base]).model.path == "org/name"
    assert load([base]).model.served_name == "org/name"
    both = load([base, overlay]).model
    assert (both.path, both.config) == (str(tmp_path / "weights"), str(tmp_path / "a/c/config.json"))
    assert both.served_name == "weights"
    monkeypatch.chdir(tmp_path / "b")
    assert load([base], ["model.path=./here"]).model.path == str(tmp_path / "b/here")
    assert load([base], ["model.path=~/m"], {"HOME": "/home/me"}).model.path == "/home/me/m"


def test_the_embedded_engine_serves_the_shipped_checkpoint_unasked(write: Write) -> None:
    model = load([write()]).model
    assert Path(model.path) == Path(pdctl.__file__).resolve().parent / "checkpoints" / "tiny"
    assert model.served_name == "tiny"


def test_problems_come_sorted_and_all_at_once(write: Write) -> None:
    base = write("router: {port: 0}\npools: {default: {gpu: 1}}\nroles: {decode: {}, prefill: {tpp: 1}}\nnam: x")
    over = write("ports: {http: x}", "o.yaml", bare=True)
    found = refused([base, over], ["slo.ttft=5", "router.colour=red"])
    places = [(span.file, span.line) for span, _ in (each.spans[0] for each in found)]
    file, site = str(base), str(over)
    assert places == [(file, 2), (file, 3), (file, 4), (file, 5), (site, 1), ("--set", 1), ("--set", 2)]


def test_a_broken_file_does_not_hide_another_broken_file(write: Write) -> None:
    found = refused([write("a: [", "a.yaml", bare=True), write("b: {", "b.yaml", bare=True)], ["nonsense"])
    assert [each.code for each in found] == [Code.YAML_SYNTAX, Code.YAML_SYNTAX, Code.BAD_SET]


def test_a_reported_value_is_not_judged_again(write: Write) -> None:
    found = refused([write("engine: {kind: sglan}\ntransfer: {backend: mooncake}\nports: {http: 8000x}")])
    assert [each.code for each in found] == [Code.BAD_CHOICE, Code.WRONG_TYPE]


def test_bare_names_find_site_then_shipped_topologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert topology_file("2p1d", {}) == ROOT / "topologies" / "2p1d.yaml"
    site = tmp_path / "site"
    site.mkdir()
    (site / "2p1d.yaml").write_text("")
    assert topology_file("2p1d", {"PDCTL_TOPOLOGIES": str(site)}) == site / "2p1d.yaml"
    assert topology_file("topologies/2p1d.yaml", {}) == Path("topologies/2p1d.yaml")
    assert topology_file("2p1d.yaml", {}) == Path("2p1d.yaml"), "a file name is a file"
    (tmp_path / "1p1d").write_text("")
    assert topology_file("1p1d", {}) == Path("1p1d"), "a file here comes before a shipped name"
    (tmp_path / "qwen3-hetero").mkdir()
    assert topology_file("qwen3-hetero", {}).suffix == ".yaml", "a directory here does not"
    assert topology_file("site", {}) == Path("site"), "unless there is nothing else to mean"


def test_an_unknown_name_is_answered_with_a_known_one() -> None:
    with pytest.raises(TopologyError) as caught:
        topology_file("2p1", {})
    assert isinstance(caught.value.diagnostics[0], Diagnostic)
    assert "did you mean `2p1d`?" in caught.value.diagnostics[0].help


def test_a_packed_copy_is_found_where_there_is_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pdctl import package_data

    package = tmp_path / "site-packages" / "pdctl"
    (package / "topologies").mkdir(parents=True)
    (package / "topologies" / "2p1d.yaml").write_text("")
    monkeypatch.setattr(package_data, "PACKAGE", package)
    assert topology_file("2p1d", {}) == package / "topologies" / "2p1d.yaml"


def test_findings_to_ignore_carry_their_reason(write: Write) -> None:
    text = """
        roles: {prefill: {}, decode: {}}
        doctor:
          ignore:
            - {code: PD410, because: a tiny model, until: "2027-01-31"}
            - {code: page-size-one, where: prefill-*, because: measured}
        """
    first, second = load([write(text)]).ignored
    assert first == ("PD410", None, "a tiny model", "2027-01-31")
    assert (second.where, second.until) == ("prefill-*", None)


def problems(path: Path) -> list[tuple[Code, str]]:
    report = ProblemReport()
    assert read_file(path, report) is None
    return [(found.code, found.help) for found in report.listed()]


def test_a_file_of_a_mebibyte_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert read_file(path, ProblemReport()) is not None
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert [code for code, _ in problems(path)] == [Code.FILE_TOO_LARGE]


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").touch()
    assert problems(tmp_path / "lama.yaml") == [(Code.MISSING_FILE, f"did you mean {tmp_path / 'llama.yaml'}?")]
    assert problems(tmp_path / "nowhere" / "other.yaml") == [(Code.MISSING_FILE, "")]


def test_a_shipped_topology_that_is_not_here_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path / "topologies" / "2p1d.yaml") == [
        (Code.MISSING_FILE, "the topology that ships with pdctl goes by its bare name: 2p1d")
    ]


def test_a_byte_order_mark_is_skipped(write: Write) -> None:
    path = write()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load([path]).version == "pdctl/v1"


def test_a_byte_that_is_not_utf8_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes("a: é\nb: ".encode() + b"\xff")
    report = ProblemReport()
    assert read_file(path, report) is None
    span, label = report.listed()[0].spans[0]
    assert (span.line, span.column, label) == (2, 4, "byte 0xff")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"version: pdctl/v1\nroles: {prefill: {}, decode: {tp: 0}}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    with pytest.raises(TopologyError) as caught:
        load([Path("-")])
    assert [found.spans[0][0].file for found in caught.value.diagnostics] == ["<stdin>"]  # type: ignore[attr-defined]
