"""`pdctl plan`: what will run where, for a topology or for a bare parallel shape."""

# No `from __future__ import annotations`: Typer would compile and evaluate each of the forty at every start.

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pdctl.cli.parameters import Parameter, TypedLine, argument, option
from pdctl.errors import ExitCode, UsageError
from pdctl.layout.shape import Shape
from pdctl.layout.workload import Measured, Nic, TrafficGoal
from pdctl.quick_definitions import NamedTuple
from pdctl.render import term

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import Plan

# These flags also apply to a topology; every other flag describes a bare shape.
SHARED = ("topology", "overlays", "sets", "target", "output", "wide", "prefill_rate", "decode_batch")


TOPOLOGY_ONLY = ("overlays", "sets", "target", "prefill_rate", "decode_batch")
# The flags without which a flag of a bare shape has no effect; any one of the groups suffices.
WITHOUT = {
    "memory": (("model",),),
    "nic": (("model", "decode_tp"),),
    "nic_count": (("nic",),),
    "isl": (("model", "memory"), ("model", "decode_tp")),
    "rate": (("model", "decode_tp"),),
    "mla": (("decode_tp",),),
}

# What a topology has in place of the flag of a bare shape.
IN_TOPOLOGY = {
    "tp": "roles.prefill.tp=8", "dp": "roles.prefill.dp=8", "pp": "roles.prefill.pp=2", "ep": "roles.prefill.ep=8",
    "replicas": "roles.prefill.replicas=2", "gpus": "pools.POOL.gpus-per-host=8",
    "moe_dp": "roles.prefill.args.moe-dp-size=2",
    "decode_tp": "roles.decode.tp=64", "decode_dp": "roles.decode.dp=8", "decode_pp": "roles.decode.pp=2",
    "decode_ep": "roles.decode.ep=8", "version": "engine.version=0.5.23", "model": "model.path=./config.json",
    "memory": "pools.POOL.gpu-memory=80GiB", "fraction": "roles.prefill.mem-fraction=0.85",
    "page_size": "roles.prefill.page-size=64", "kv_dtype": "model.kv-dtype=fp8_e4m3",
    "nic": "pools.POOL.nic.speed=400Gbps", "nic_count": "pools.POOL.nic.count=8", "isl": "workload.isl=4096",
    "rate": "workload.rate=20",
}  # fmt: skip


class PlanForm(str, Enum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    SHELL = "shell"


class PlanTarget(str, Enum):
    LOCAL = "local"
    POOLS = "pools"
    KUBERNETES = "kubernetes"


class About(NamedTuple):
    """The flags about the engine, the model and the hardware; quantities are still text."""

    version: str | None
    model: str | None
    mla: bool | None
    gpu_memory: str | None
    mem_fraction: float | None
    page_size: int | None
    kv_dtype: str
    nic: str | None
    nic_count: int
    isl: int | None
    rate: float | None


def _flag(
    name: str,
    text: str,
    metavar: str = "N",
    min: int | None = None,
    max: int | None = None,
    above: int | None = None,
) -> Parameter:
    return option(name, help=text, metavar=metavar, min=min, max=max, above=above)


File = option("--file", "-F", metavar="FILE", help="Overlay merged over the file; repeatable.")
Setting = option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
Speed = _flag("--prefill-rate", "Tokens/s measured per prefill.", "40000", above=0)
Batch = _flag("--decode-batch", "Requests one decode runs at once.", min=1)
Name = argument(metavar="[FILE|NAME]", help="Topology file, or the name of a shipped one.")


def command(
    line: TypedLine,
    topology: Annotated[str | None, Name] = None,
    overlays: Annotated[list[str] | None, File] = None,
    sets: Annotated[list[str] | None, Setting] = None,
    target: Annotated[PlanTarget | None, option(help="Target of a topology; the one it implies if not given.")] = None,
    output: Annotated[PlanForm, option("--output", "-o", help="Form of the answer.")] = PlanForm.TABLE,
    wide: Annotated[bool, option("--wide", help="Every row and command, on a terminal too.")] = False,
    tp: Annotated[int | None, _flag("--tp", "GPUs of one pipeline stage (sglang's tp_size).")] = None,
    dp: Annotated[int, _flag("--dp", "Attention DP groups of these GPUs.")] = 1,
    pp: Annotated[int, _flag("--pp", "Pipeline stages.")] = 1,
    ep: Annotated[int, _flag("--ep", "Expert parallel size.")] = 1,
    cp: Annotated[int, _flag("--attn-cp", "Attention context parallel size.")] = 1,
    moe_dp: Annotated[int, _flag("--moe-dp", "MoE data parallel size.")] = 1,
    replicas: Annotated[int, _flag("--replicas", "Plain data parallel copies, instead of --dp.")] = 1,
    nnodes: Annotated[int | None, _flag("--nnodes", "Hosts of the instance; as many as needed if not given.")] = None,
    gpus: Annotated[int, _flag("--gpus-per-host", "GPUs of a host.")] = 8,
    base: Annotated[int, _flag("--base-gpu-id", "First GPU on every host.")] = 0,
    step: Annotated[int, _flag("--gpu-id-step", "Difference between the ids of one GPU and the next.")] = 1,
    deepep: Annotated[bool, option("--deepep", help="DeepEP all-to-all: --ep becomes --tp.")] = False,
    decode_tp: Annotated[
        int | None, _flag("--decode-tp", "Add a decode instance with this --tp, and print the links.")
    ] = None,
    decode_dp: Annotated[int, _flag("--decode-dp", "--dp of the decode instance.")] = 1,
    decode_pp: Annotated[int, _flag("--decode-pp", "--pp of the decode instance.")] = 1,
    decode_ep: Annotated[int, _flag("--decode-ep", "--ep of the decode instance.")] = 1,
    version: Annotated[str | None, _flag("--sglang-version", "Release whose rules apply.", "VERSION")] = None,
    model: Annotated[str | None, _flag("--model", "Checkpoint directory or config.json.", "PATH")] = None,
    mla: Annotated[bool | None, option("--mla/--gqa", help="Kind of attention, if no --model is given.")] = None,
    memory: Annotated[str | None, _flag("--gpu-memory", "Memory free on each GPU before loading.", "80GiB")] = None,
    fraction: Annotated[
        float | None, _flag("--mem-fraction", "Share of --gpu-memory for weights and KV cache.", "0.85", above=0, max=1)
    ] = None,
    page_size: Annotated[int | None, _flag("--page-size", "Tokens of a KV page.", min=1, max=4096)] = None,
    kv_dtype: Annotated[
        str, _flag("--kv-dtype", "Data type of the KV cache, such as bf16 or fp8_e4m3.", "DTYPE")
    ] = "auto",
    nic: Annotated[str | None, _flag("--nic", "Speed of one NIC.", "400Gbps")] = None,
    nic_count: Annotated[int, _flag("--nic-count", "NICs of a host.", min=1, max=64)] = 1,
    isl: Annotated[int | None, _flag("--isl", "Tokens of a prompt.", min=1)] = None,
    rate: Annotated[float | None, _flag("--rate", "Requests per second.", "20", above=0)] = None,
    prefill_rate: Annotated[float | None, Speed] = None,
    decode_batch: Annotated[int | None, Batch] = None,
) -> ExitCode:
    """Say what will run where: ranks, GPUs, ports, KV links, memory, commands.

    \b
    pdctl plan --tp 16 --dp 8                                        # which rank on which GPU
    pdctl plan --tp 16 --dp 8 --decode-tp 32 --decode-dp 32          # and who pulls KV from whom
    pdctl plan --tp 8 --model ./config.json --gpu-memory 80GiB       # and what fits
    pdctl plan 2p1d                                                  # every instance of a topology, and its commands
    pdctl plan deepseek-v3-wide --set roles.decode.dp=16 -o json
    """
    if topology is not None:
        plan = _of_topology(line, topology, overlays or [], sets or [], target, Measured(prefill_rate, decode_batch))
    else:
        shape = Shape(tp or 0, dp, pp, ep, cp, moe_dp, replicas, nnodes, gpus, base, step, deepep)
        pulls = Shape(decode_tp or 0, decode_dp, decode_pp, decode_ep, gpus_per_host=gpus)
        about = About(version, model, mla, memory, fraction, page_size, kv_dtype, nic, nic_count, isl, rate)
        plan = _of_flags(line, shape, pulls, about)
        _note_flags_without_effect(line)
    if wide and output is not PlanForm.TABLE:
        term.err().write(f"note: --wide has no effect on -o {output.value}, which is always whole")
    _print(plan, output, wide)
    return ExitCode.OK if plan.feasible else ExitCode.FINDINGS


def _of_topology(
    line: TypedLine, name: str, overlays: list[str], sets: list[str], target: PlanTarget | None, measured: Measured
) -> "Plan":
    for name_of_flag, flag in line.given.items():
        if name_of_flag not in SHARED:
            raise UsageError(f"{flag} does not go with a topology", _in_topology(name_of_flag))
    from pdctl.layout.planner import plan_topology  # imported late: each form of the verb loads only what it needs
    from pdctl.topology import resolve

    topology = resolve.load([resolve.topology_file(each) for each in (name, *overlays)], sets)
    return plan_topology(topology, target.value if target is not None else None, measured)


def _in_topology(flag: str) -> str:
    """The fix: what to set in a topology instead."""
    written = IN_TOPOLOGY.get(flag)
    if written is None:
        return "leave it out: the topology and its model say it"
    return f"the topology says it; change it with --set, such as --set {written}"


def _of_flags(line: TypedLine, shape: Shape, decode: Shape, about: About) -> "Plan":
    if "tp" not in line.given:
        fix = "name a topology (`pdctl plan 2p1d`) or give a shape (`pdctl plan --tp 16 --dp 8`)"
        raise UsageError("no topology and no --tp: nothing to plan", fix)
    for name, flag in line.given.items():
        if name in TOPOLOGY_ONLY:
            raise UsageError(f"{flag} goes with a topology, not with a bare shape", "name one: pdctl plan 2p1d")
    lone = [flag for name, flag in line.given.items() if name.startswith("decode_") and "decode_tp" not in line.given]
    if lone:
        raise UsageError(f"{lone[0]} without --decode-tp", "give the decode's --decode-tp too")
    from pdctl.layout.planner import plan_shape  # imported late, as above

    return plan_shape(
        shape,
        decode if "decode_tp" in line.given else None,
        version=about.version,
        model=about.model,
        mla=about.mla,
        gpu_memory=_size(about.gpu_memory) if about.gpu_memory is not None else None,
        mem_fraction=about.mem_fraction,
        page_size=about.page_size,
        kv_dtype=about.kv_dtype,
        nic=_nic(about.nic, about.nic_count) if about.nic is not None else None,
        workload=TrafficGoal(isl=about.isl, rate=about.rate),
    )


def _note_flags_without_effect(line: TypedLine) -> None:
    """Print to stderr which flags have no effect: otherwise the plan would be taken as computed with them."""
    for name, flag in line.given.items():
        needs = WITHOUT.get(name, ())
        if needs and not any(line.given.keys() >= set(each) for each in needs):
            ways = " or ".join(" and ".join(line.flags[need] for need in each) for each in needs)
            term.err().write(f"note: {flag} has no effect without {ways}")
    if {"mla", "model"} <= line.given.keys():
        term.err().write("note: --mla and --gqa have no effect with --model, which says it")


def _size(text: str) -> int:
    from pdctl.units import UnitError, parse_size

    try:
        return parse_size(text)
    except UnitError as error:
        raise UsageError(f"--gpu-memory {text}: {error}", error.fix) from None


def _nic(text: str, count: int) -> Nic:
    from pdctl.units import UnitError, parse_rate

    try:
        return Nic(parse_rate(text), count)
    except UnitError as error:
        raise UsageError(f"--nic {text}: {error}", error.fix) from None


def _print(plan: "Plan", form: PlanForm, wide: bool) -> None:
    stream = term.out()
    if form is PlanForm.TABLE:
        from pdctl.render.plan_table import show

        show(stream, plan, wide)
    elif form is PlanForm.SHELL:
        from pdctl.render.plan_table import shell_script

        stream.write("\n".join(shell_script(plan)))
    else:
        from pdctl.layout.instance_plan import to_json, to_yaml

        stream.write(to_json(plan) if form is PlanForm.JSON else to_yaml(plan))
