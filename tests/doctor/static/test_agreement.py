"""What the two roles must share, and how sure one can be of it from the command lines."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.written import (
    DECODE,
    DEEPSEEK,
    ENGINE,
    GPT_OSS,
    LAUNCH_ROUTER,
    PREFILL,
    ROUTER,
    doubt,
    embedded,
    found,
    manifest,
    pair,
    pods,
    script,
    topology,
)

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@for_each(
    ("code", "prefill", "decode", "severity"),
    [
        ("PD302", "--page-size 16", "--page-size 32", ERROR),
        ("PD302", "--page-size 16", "--page-size=16", None),
        ("PD302", "--page-size $PAGE", "--page-size 32", None),
        ("PD303", "--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype fp8_e5m2", ERROR),
        ("PD303", "--kv-cache-dtype auto", "--kv-cache-dtype bf16", WARNING),
        ("PD303", "", "--kv-cache-dtype bf16", WARNING),
        ("PD303", "--kv-cache-dtype bf16", "--kv-cache-dtype bf16", None),
        ("PD304", "--attention-backend fa3", "--attention-backend flashinfer", WARNING),
        ("PD304", "--attention-backend fa3", "", INFO),
        ("PD304", "--prefill-attention-backend fa3", "--decode-attention-backend fa3", None),
        ("PD304", "--attention-backend fa3 --dsv4-attn-backend a", "--attention-backend fa3", WARNING),
        ("PD307", "--context-length 4096", "--context-length 8192", WARNING),
        ("PD307", "--context-length 4096", "", WARNING),
        ("PD308", "--speculative-algorithm EAGLE", "", ERROR),
        ("PD308", "", "--speculative-algorithm EAGLE --speculative-num-steps 3", ERROR),
        ("PD308", *["--speculative-algorithm EAGLE --speculative-num-draft-tokens 4"] * 2, None),
        ("PD309", "--disaggregation-transfer-backend nixl", "", ERROR),
        ("PD309", "--disaggregation-transfer-backend mooncake", "", None),
        ("PD309", "--disaggregation-transfer-backend mooncake_tcp", "", ERROR),
        ("PD311", "--model-path a", "--model-path b", ERROR),
        ("PD312", "--mamba-ssm-dtype float32", "", WARNING),
        ("PD324", "", "--dcp-size 2", WARNING),
        ("PD324", "--dcp-size 2", "", ERROR),
        ("PD324", "--dcp-size 1", "", None),
        ("PD325", "--disaggregation-decode-allocation-policy prefill_complete", "", ERROR),
        ("PD325", "--disaggregation-decode-allocation-policy early", "", None),
        ("PD326", "", "--disaggregation-enable-kv-checksum", WARNING),
        ("PD312", "--mamba-ssm-dtype float32", "--mamba-ssm-dtype bfloat16", ERROR),
        ("PD414", "--disaggregation-ib-device mlx5_0", "--disaggregation-ib-device mlx5_1", WARNING),
        ("PD414", "--disaggregation-ib-device mlx5_0", "", INFO),
        ("PD315", "--pp-size 2", "--pp-size 2", None),
        ("PD315", "--pp-size 2", "", None),
        ("PD315", "--pp-size 2", "--pp-size 4", ERROR),
        ("PD316", "--tp-size 4", "--tp-size 3", ERROR),
        ("PD316", "--tp-size 4", "--tp-size 2", None),
        ("PD316", "--tp-size 4 --dp-size 2 --enable-dp-attention", "--tp-size 3", ERROR),
        ("PD314", "--chunked-prefill-size 100", "", ERROR),
        ("PD314", "--chunked-prefill-size 256 --dp-size 8 --enable-dp-attention", "", ERROR),
        ("PD314", "--chunked-prefill-size 512 --dp-size 8 --enable-dp-attention", "", None),
        ("PD314", "--chunked-prefill-size -1", "", None),
        ("PD314", "--chunked-prefill-size 100 --page-size 0", "", None),
        ("PD314", "", "--chunked-prefill-size 100", None),
    ],
)
def test_one_setting_on_two_sides(code: str, prefill: str, decode: str, severity: Severity | None) -> None:
    assert [each.severity for each in found(pair(prefill, decode), code)] == ([severity] if severity else [])


def test_0_5_13_compares_the_words_of_the_kv_dtype() -> None:
    for image, severity in (("sglang:v0.5.13", ERROR), ("sglang:v0.5.15", ERROR), ("sglang:v0.5.18", WARNING)):
        facts = pods(decode="--kv-cache-dtype bf16", image=image)
        assert [each.severity for each in found(facts, "PD303")] == [severity]


@for_each(
    ("images", "severity"),
    [
        (("x/sglang:v0.5.18", "y/sglang:v0.5.18-cu129"), None),
        (("x/sglang:v0.5.18", "x/sglang:v0.5.23"), ERROR),
        (("x/sglang:v0.5.18", "x/sglang@sha256:1"), WARNING),
        (("x/sglang:a", "x/sglang:a"), None),
    ],
)
def test_images_tell_releases(images: tuple[str, str], severity: Severity | None) -> None:
    facts = pods(image=images[0], decode_image=images[1])
    assert [each.severity for each in found(facts, "PD310")] == ([severity] if severity else [])


@for_each(
    ("router", "told"),
    [
        (ROUTER, []),
        ("--pd-disaggregation --prefill http://127.0.0.1:30001 1 --decode http://127.0.0.1:30001", ["decode:30001"]),
        ("--pd-disaggregation --prefill http://127.0.0.1:30000 1 --decode http://127.0.0.1:30000", ["prefill:30000"]),
        ("--pd-disaggregation --prefill http://127.0.0.1:9 1 --decode http://127.0.0.1:8", []),
    ],
)
def test_the_routers_roles_are_the_engines_modes(router: str, told: list[str]) -> None:
    assert [each.instance for each in found(pair(router=router), "PD301")] == told


NO_MODE = DECODE.replace("--disaggregation-mode decode ", "")


@for_each(
    ("command", "severity"),
    [
        (f"{ENGINE} {NO_MODE}", WARNING),
        (f"{ENGINE} {NO_MODE} --config engine.yaml", None),
        (f"{ENGINE} $MORE {NO_MODE}", None),
        (f"{ENGINE} {NO_MODE} --enable-metrics $MORE", None),
        (f"{ENGINE} {NO_MODE} --served-model-name $NAME", WARNING),
        (f"{ENGINE} {NO_MODE} --disagregation-mode decode", None),
        (f"python -m dynamo.sglang {NO_MODE}", None),
    ],
    ids=["none", "file", "flags first", "flags last", "a value", "mistyped", "dynamo"],
)
def test_an_engine_without_a_mode_is_no_half_of_a_pair(command: str, severity: Severity | None) -> None:
    problems = found(script(f"{ENGINE} {PREFILL}", command, f"{LAUNCH_ROUTER} {ROUTER}"), "PD301")
    assert [each.severity for each in problems] == [severity] * bool(severity)
    assert all(each.fix == "start engine:30001 with --disaggregation-mode decode" for each in problems)


def test_a_pod_without_a_mode_is_an_error() -> None:
    """Nobody adds a flag to what a manifest starts."""
    text = """
        services:
          p: {image: x/sglang, command: python -m sglang.launch_server --disaggregation-mode prefill --host 0.0.0.0}
          d: {image: x/sglang, command: python -m sglang.launch_server --host 0.0.0.0}
          r:
            image: x/router
            command: python -m sglang_router.launch_router --pd-disaggregation --prefill http://p:30000 8998
              --decode http://d:30000
        """
    (one,) = found(manifest(text, "compose.yaml"), "PD301")
    assert (one.instance, one.severity) == ("d", Severity.ERROR)
    assert one.headline == "d runs as neither prefill nor decode, but the router uses it as decode"


def test_one_role_alone_has_nobody_to_agree_with() -> None:
    facts = script("python -m sglang.launch_server --disaggregation-mode prefill --page-size 16")
    assert doubt(facts, "PD302") == "there is no prefill with a decode to compare"


def test_one_page_size_for_a_role_of_sglang_leaves_the_other_to_the_engine() -> None:
    facts = topology("roles.decode.page-size=null")
    (said,) = found(facts, "PD302")
    assert (said.severity, said.observed, said.expected) == (WARNING, "left to the engine", "64")
    assert not found(embedded("roles.decode.page-size=16"), "PD302")


GROUPS = ("roles.prefill.tp=2", "roles.prefill.dp=2")


@for_each(
    ("sets", "gqa", "hybrid"),
    [
        ((), [], []),
        (GROUPS, [WARNING], []),
        ((*GROUPS, "transfer.env.SGLANG_DISAGG_STAGING_BUFFER=1"), [INFO], []),
        ((*GROUPS, f"model.config={DEEPSEEK}/config.json"), [], []),
        ((*GROUPS, f"model.config={GPT_OSS}/config.json", "engine.version=0.5.18"), [], [ERROR]),
        ((*GROUPS, f"model.config={GPT_OSS}/config.json", "engine.version=0.5.23"), [], [WARNING]),
        (
            (*GROUPS, f"model.config={GPT_OSS}/config.json", "engine.version=0.5.23", "roles.prefill.pp=2"),
            [],
            [ERROR],
        ),
    ],
    ids=["equal", "gqa", "staged", "mla", "hybrid", "hybrid sliced", "hybrid with stages"],
)
def test_unequal_widths_matter_by_family(sets: tuple[str, ...], gqa: list[Severity], hybrid: list[Severity]) -> None:
    facts = topology(*sets)
    assert [each.severity for each in found(facts, "PD305")] == gqa
    assert [each.severity for each in found(facts, "PD306")] == hybrid


def test_without_the_model_nobody_can_tell_whether_unequal_widths_matter() -> None:
    facts: Facts = topology(*GROUPS, "model.config=null")
    for code in ("PD305", "PD306"):
        assert doubt(facts, code) == (
            "attention TP differs (1 and 2), which matters by model family, and the model's config.json is not at hand "
            "(set model.config)"
        )


@for_each(("prefill", "decode", "size"), [(1, 16, 16), (64, 32, 64), (16, 64, 64), (1, 1, 64), (32, 1, 32)])
def test_one_page_size_is_advised_whoever_is_asked(prefill: int, decode: int, size: int) -> None:
    """PD302, PD410, the plan (and with it `pdctl import`): of a topology and of a script."""
    sets = (f"roles.prefill.page-size={prefill}", f"roles.decode.page-size={decode}", "transfer.backend=mooncake")
    facts = topology(*sets)
    assert facts.plan is not None
    ways = [way for problem in facts.plan.problems for way in problem.nearest]
    assert all(f"page-size={size}" in way for way in ways), ways
    if ways:
        assert not topology(*sets, *ways[0].replace("--set ", "").split()).plan.problems  # type: ignore[union-attr]
    for each in (facts, pair(f"--page-size {prefill}", f"--page-size {decode}")):
        told = [one for code in ("PD302", "PD410") for one in found(each, code)]
        assert {one.fix for one in told} == {f"set --page-size {size} on both roles"}
        assert {one.expected for one in told if one.code == "PD410"} <= {str(size)}
