"""`pdctl simulate`: what scaling policies would do to a topology under a trace, in simulated time."""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pdctl import program, user_files
from pdctl.cli.exits import INTERRUPTED
from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode, LimitError, PdctlError, StorageError, UsageError
from pdctl.json_records import JsonPlace, read_record
from pdctl.layout.cost_profile import read_profile
from pdctl.policy import POLICIES, ScalingPolicyName
from pdctl.policy.constraints import Limits
from pdctl.quick_definitions import NamedTuple
from pdctl.render import simulation_table, term
from pdctl.render.term import as_json
from pdctl.simulation import synthetic, trace_files
from pdctl.simulation.fleet_shape import MOST_REPLICAS, FleetShape, RequestRouting, SimulationSettings, instance_gpus
from pdctl.simulation.parallel_runs import LostRun, RunJob, collect_outcome, run_jobs
from pdctl.simulation.simulation_document import SimulationSetup, to_document
from pdctl.simulation.statistics import read_targets
from pdctl.simulation.weight_loads import LoadPlan
from pdctl.suggestions import hint
from pdctl.topology import resolve
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdctl.layout.cost_profile import CostProfile
    from pdctl.render.simulation_progress import SimulationProgress
    from pdctl.simulation.parallel_runs import FinishedRun
    from pdctl.simulation.request_trace import RequestTrace
    from pdctl.simulation.simulation_document import SimulationOutcome
    from pdctl.topology.model import Topology

DOCUMENT, PAGE = "simulation.json", "report.html"
DECISIONS = re.compile(rf"({'|'.join(ScalingPolicyName)})(-({'|'.join(LoadPlan)}))?-\d+\.decisions\.jsonl")
MOST_RUNS = 10_000  # policies × seeds
MOST_NAMED = 5  # runs that were lost


class SimulationForm(str, Enum):
    TEXT = "text"
    JSON = "json"


class GivenTrace(NamedTuple):
    """`make` gives the requests for a seed; a file has the same for each. `file`: the one they were read from."""

    make: Callable[[int], RequestTrace]
    skipped: int = 0
    file: Path | None = None


File = option("--file", "-F", metavar="FILE", help="Overlay merged over the file; repeatable.")
Setting = option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
TRACE_HELP = "A synthetic trace, such as burst:rate=8, or a file: Azure, BurstGPT, Mooncake, BlitzScale."
LIMIT_HELP = "Limits of every policy, such as prefill=1..8,decode=1..8,gpus=12; repeatable."


def command(
    topology: Annotated[str, argument(metavar="FILE|NAME", help="Topology file, or the name of a shipped one.")],
    trace: Annotated[str, option("--trace", metavar="TRACE|FILE", help=TRACE_HELP)],
    policy: Annotated[
        str, option("--policy", metavar="NAME,...", help="Policies: `pdctl autoscale policies`.")
    ] = "static",
    settings: Annotated[
        list[str] | None, option("--setting", metavar="POLICY.NAME=VALUE", help="A setting of a policy; repeatable.")
    ] = None,
    limits: Annotated[list[str] | None, option("--limit", metavar="NAME=VALUE", help=LIMIT_HELP)] = None,
    overlays: Annotated[list[str] | None, File] = None,
    sets: Annotated[list[str] | None, Setting] = None,
    profile: Annotated[
        str, option("--profile", metavar="NAME|FILE", help="Cost profile: what steps, transfers and loads cost.")
    ] = "gpu-8b",
    seeds: Annotated[int, option("--seeds", metavar="N", help="Runs of each policy.", min=1, max=1000)] = 1,
    seed: Annotated[int, option("--seed", metavar="N", help="The first seed.", min=0)] = 0,
    slo: Annotated[
        str, option("--slo", metavar="TARGETS", help="Latency targets that count as fast enough.")
    ] = "ttft=2s,tbt=50ms",
    loading: Annotated[
        str, option("--loading", metavar="PLAN,...", help=f"How weights are loaded: {', '.join(LoadPlan)}.")
    ] = LoadPlan.PEER.value,
    routing: Annotated[
        RequestRouting, option("--routing", help="Who decides where a prompt is computed.")
    ] = RequestRouting.LEAST_TOKENS,
    interval: Annotated[
        str | None, option("--interval", metavar="TIME", help="Time between decisions, in place of each policy's own.")
    ] = None,
    park: Annotated[
        str, option("--park", metavar="TIME", help="How long a drained replica keeps its weights.")
    ] = "333ms",
    gate: Annotated[
        bool, option("--gate/--no-gate", help="Lock decodes that are much fuller than the others.")
    ] = False,
    flips: Annotated[bool, option("--flips/--no-flips", help="Change roles in place, or drain and park first.")] = True,
    one_sender: Annotated[
        bool, option("--one-sender/--many-senders", help="One transfer into a decode at a time, as BlitzScale.")
    ] = False,
    longest: Annotated[
        str | None, option("--longest", metavar="TIME", help="Simulated time after which a run ends.")
    ] = None,
    skip_bad_rows: Annotated[
        bool, option("--skip-bad-rows", help="Leave out bad rows of a trace's file, and say how many.")
    ] = False,
    rows: Annotated[
        int | None, option("--rows", metavar="N", help="Requests of a trace's file, from its start.", min=1)
    ] = None,
    write_trace: Annotated[
        str | None, option("--write-trace", metavar="FILE", help="Write the trace in Mooncake's format, and end.")
    ] = None,
    out: Annotated[str | None, option("--out", metavar="DIR", help="Document, decisions and a page of plots.")] = None,
    jobs: Annotated[
        int | None, option("--jobs", metavar="N", help="Runs at a time; as many as cores.", min=1, max=1024)
    ] = None,
    output: Annotated[SimulationForm, option("--output", "-o", help="Form of the answer.")] = SimulationForm.TEXT,
) -> int:
    """Say what scaling policies would do under a trace: latency, goodput, GPU-time. Nothing is started.

    \b
    pdctl simulate 2p1d --trace burst --policy blitz,static --limit prefill=1..4,decode=1..4
    pdctl simulate 2p1d --trace burst:rate=8,factor=5 --policy blitz --seeds 5 --out burst
    pdctl simulate base.yaml --trace conversation.jsonl --profile my.yaml --slo ttft=2s,tbt=50ms -o json
    pdctl simulate 2p1d --trace diurnal --write-trace day.jsonl
    pdctl simulate calibrate                                   # a profile of the deployment that runs
    """
    given = _trace(trace, seed, skip_bad_rows, rows)
    targets = read_targets(slo)
    chosen = _policies(policy, settings or [])
    plans = _plans(loading)
    if write_trace is not None:
        _refuse_own_input(trace, given, Path(write_trace))
        written = given.make(seed)
        trace_files.write_request_trace(Path(write_trace), written)
        term.err().write(f"note: {len(written.requests):,} requests are in {write_trace}; nothing was simulated")
        return ExitCode.OK
    if (count := len(chosen) * len(plans) * seeds) > MOST_RUNS:
        raise UsageError(f"policies × ways to load × seeds are {count:,} runs, above {MOST_RUNS:,}", "lower --seeds")
    costs = read_profile(profile)
    resolved = resolve.load([resolve.topology_file(each) for each in (topology, *(overlays or []))], sets or [])
    sizes = instance_gpus(resolved)
    _note_sizes(sizes, profile, costs)
    bounds, replicas = _limits(limits or [], resolved, sizes)
    fleet = FleetShape.from_topology(resolved, costs, replicas=replicas)
    directory = None if out is None else _directory(Path(out))
    base = SimulationSettings(
        limits=bounds,
        interval_s=None if interval is None else flag_seconds("--interval", interval, positive=True),
        routing=routing,
        gate=gate,
        flips=flips,
        one_sender=one_sender,
        park_s=flag_seconds("--park", park),
        longest_s=None if longest is None else flag_seconds("--longest", longest, positive=True),
    )
    runs = [
        (name, replace(base, policy=name, policy_settings=own, loading=plan, seed=each))
        for name, own in chosen.items()
        for plan in plans
        for each in range(seed, seed + seeds)
    ]
    work = [
        RunJob(
            f"{name.value} {each.loading.value}" if len(plans) > 1 else name.value,
            *(fleet, each, given.make, targets, directory),
        )
        for name, each in runs
    ]
    setup = SimulationSetup(
        topology=resolved.name or topology,
        trace=trace,
        profile=profile,
        loading=tuple(plan.value for plan in plans),
        targets=targets,
        limits=asdict(bounds),
        fleet={"prefills": fleet.prefills, "decodes": fleet.decodes, "replicas": fleet.replicas},
        skipped=given.skipped,
        longest_s=base.longest_s,
    )
    finished, lost, whole = _run(work, jobs or _cores())
    outcome = collect_outcome(setup, work, finished)
    answer = term.out()
    if output is SimulationForm.JSON:
        answer.write(as_json(to_document(outcome)))
    else:
        simulation_table.show(outcome, answer)
    answer.flush()  # whatever becomes of the files
    refused: list[PdctlError] = [_lost(lost, work)] if lost else []
    if directory is not None:
        unwritten = [*(one.unwritten for one in finished if one.unwritten), *_write_files(directory, outcome)]
        if unwritten:
            what = f"--out {directory}: not written: {', '.join(unwritten)}"
            refused.append(StorageError(what, "free space there, or name another directory"))
        else:
            _remove_earlier(directory, {work[one.job].decisions for one in finished})
    for error in refused[:-1]:
        term.err().write(f"error: {error.message}\n  fix: {error.fix}")
    if refused:
        raise refused[-1]
    return ExitCode.OK if whole else INTERRUPTED


def calibrate(
    run: Annotated[str | None, argument(metavar="[RUN]", help="Name of the run; not needed for a single one.")] = None,
    base: Annotated[
        str, option("--base", metavar="NAME|FILE", help="The profile that says what is not measured.")
    ] = "laptop",
    seed: Annotated[int, option("--seed", metavar="N", help="Seed of the prompts that are sent.", min=0)] = 0,
    timeout: Annotated[str, option("--timeout", metavar="TIME", help="How long an answer may take.")] = "2m",
    output_file: Annotated[
        str | None, option("--output-file", metavar="FILE", help="Where to write the profile; default: stdout.")
    ] = None,
) -> None:
    """Measure what steps cost on a running deployment that is idle otherwise, and print a profile for --profile.

    \b
    pdctl simulate calibrate --output-file mine.yaml
    pdctl simulate calibrate blue --base gpu-8b
    """
    # Imported late: a simulation needs nothing of a launch.
    from pdctl.launch import clusters, credentials, run_health
    from pdctl.launch.run_choice import find_run
    from pdctl.launch.run_directory import home
    from pdctl.simulation.calibration import CalibrationTarget, write_profile
    from pdctl.simulation.calibration import calibrate as measure

    limit = flag_seconds("--timeout", timeout, positive=True)
    begun = read_profile(base)
    with term.to_file(None if output_file is None else Path(output_file)) as stream:  # before minutes of measuring
        fix = "calibrate one of this machine"
        if (cluster := clusters.meant(home(os.environ), run)) is not None:
            raise UsageError(f"run {cluster.name} runs on a cluster, which cannot be calibrated", fix)
        found = find_run(home(os.environ), run)
        deployment = found.deployment
        if not deployment.checkpoint:
            raise UsageError(f"run {found.name} has no checkpoint on this machine, which cannot be calibrated", fix)
        run_health.refuse_to_ask(found)
        target = CalibrationTarget(
            deployment.url,
            run_health.endpoints(deployment),
            deployment.checkpoint,
            credentials.api_key(deployment),
            limit,
        )
        measured = measure(target, begun, seed, lambda words: term.err().write(words))
        stream.write(write_profile(measured, found.name).rstrip())


SUBVERBS = (calibrate,)


def _trace(text: str, seed: int, skip_bad_rows: bool, rows: int | None) -> GivenTrace:
    name = text.partition(":")[0]
    if name in synthetic.trace_names():
        if skip_bad_rows or rows is not None:
            flag = "--skip-bad-rows" if skip_bad_rows else "--rows"
            raise UsageError(f"{flag} goes with a file, and {name} is a synthetic trace", "leave it out")
        first = synthetic.make_request_trace(text, seed)  # whatever is wrong with it is said here, not by every run
        return GivenTrace(lambda each: first if each == seed else synthetic.make_request_trace(text, each))
    path = user_files.expanded(text)
    if not path.exists() and os.sep not in text and "." not in text:
        known = ", ".join(synthetic.trace_names())
        raise UsageError(
            f"--trace {text}: no such file or synthetic trace", hint(name, synthetic.trace_names()) or known
        )
    trace = trace_files.read_request_trace(path, skip_bad_rows=skip_bad_rows, limit=rows)
    return GivenTrace(lambda _: trace, trace.skipped, path)


def _refuse_own_input(trace: str, given: GivenTrace, target: Path) -> None:
    """Raise UsageError where --write-trace would write over what --trace reads, by whatever name."""
    try:
        same = given.file is not None and given.file.samefile(user_files.expanded(str(target)))
    except OSError:  # there is no such file yet
        same = False
    if same:
        raise UsageError(f"--write-trace {target} is the file that --trace {trace} reads", "name another file")


def _policies(text: str, settings: Sequence[str]) -> dict[ScalingPolicyName, Any]:
    """The policies by name, each with its settings."""
    known = [name.value for name in POLICIES]
    given: dict[str, dict[str, object]] = {}
    for name in text.split(","):
        if name not in known:
            raise UsageError(
                f"--policy {name}: there is no such policy", hint(name, known) or f"known: {', '.join(known)}"
            )
        if name in given:
            raise UsageError(f"--policy {name}: named twice", "name each once")
        given[name] = {}
    for each in settings:
        path, sign, value = each.partition("=")
        name, _, member = path.partition(".")
        if not sign or not member:
            raise UsageError(f"--setting {each}: not POLICY.NAME=VALUE", "such as --setting blitz.prefill=0.5..0.7")
        if name not in given:
            raise UsageError(f"--setting {each}: --policy does not name {name}", f"add it: --policy {text},{name}")
        given[name][member] = _value(value)
    return {
        ScalingPolicyName(name): read_record(
            POLICIES[ScalingPolicyName(name)].settings, members, JsonPlace(f"--setting {name}")
        )
        for name, members in given.items()
    }


def _plans(text: str) -> list[LoadPlan]:
    known = [plan.value for plan in LoadPlan]
    for name in text.split(","):
        if name not in known:
            raise UsageError(
                f"--loading {name}: there is no such way to load weights",
                hint(name, known) or f"known: {', '.join(known)}",
            )
    return [LoadPlan(name) for name in dict.fromkeys(text.split(","))]


def _note_sizes(sizes: Mapping[str, int], profile: str, costs: CostProfile) -> None:
    """Say where the topology's instances are not of the size that the profile's costs were measured with."""
    if any(gpus != costs.gpus for gpus in sizes.values()):
        wanted = ", ".join(f"{gpus} of a {name}" for name, gpus in sizes.items())
        term.err().write(
            f"note: GPUs of an instance: {wanted}, by which GPU-time and limits are counted; the costs of profile "
            f"{profile} are those of an instance of {costs.gpus}: for others give a profile of that size"
        )


def _limits(texts: Sequence[str], topology: Topology, sizes: Mapping[str, int]) -> tuple[Limits, int]:
    """As typed, and the replicas that they allow in all.

    A role that is not limited may have all replicas but one, and there are as many as the topology has.
    """
    given: dict[str, object] = {}
    for part in [part for text in texts for part in text.split(",")]:
        name, sign, value = part.partition("=")
        if not sign:
            raise UsageError(f"--limit {part}: not NAME=VALUE", "such as --limit prefill=1..8,decode=1..8")
        given[name.strip()] = _value(value)
    each = {f"gpus_per_{role}": gpus for role, gpus in sizes.items()}
    read = read_record(Limits, {**each, **given}, JsonPlace(f"--limit {','.join(texts)}".rstrip()))
    sizes = {"prefill": read.gpus_per_prefill, "decode": read.gpus_per_decode}
    present = {"prefill": topology.prefill.instances, "decode": topology.decode.instances}
    counts = {role: getattr(read, role)[1] if role in given else count for role, count in present.items()}
    most, gpus, begin = sum(counts.values()), read.gpus, sum(sizes[role] * count for role, count in present.items())
    if gpus is None:
        gpus = sum(sizes[role] * count for role, count in counts.items())
    else:
        if gpus < begin:
            serving = " and ".join(f"{count} {role}" for role, count in present.items())
            raise UsageError(
                f"--limit gpus={gpus}: the topology begins with {serving}, which have {begin} GPUs",
                f"give at least gpus={begin}, or a smaller topology",
            )
        # One of the larger role, the others of the smaller one.
        most = 1 + (gpus - max(sizes.values())) // min(sizes.values())
    if most > MOST_REPLICAS:
        raise UsageError(
            f"--limit {','.join(texts)}: {most:,} replicas, above {MOST_REPLICAS:,}, which is as many as are simulated",
            f"give a lower one: at most {MOST_REPLICAS:,} replicas in all",
        )
    free = (1, max(1, most - 1))
    prefill, decode = (getattr(read, role) if role in given else free for role in present)
    return replace(read, gpus=gpus, prefill=prefill, decode=decode), most


def _value(text: str) -> object:
    """As in a JSON document, and `1..8` for a list of two."""
    low, dots, high = text.partition("..")
    return [_plain_value(low), _plain_value(high)] if dots else _plain_value(low)


def _plain_value(text: str) -> object:
    """As in a JSON document; what is none there, or nested too deep to be read, as the text that it is."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    return value


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(work: Sequence[RunJob], processes: int) -> tuple[list[FinishedRun], list[LostRun], bool]:
    """The runs that finished, those that were lost, and whether these are all: Ctrl-C keeps them."""
    finished: list[FinishedRun] = []
    lost: list[LostRun] = []
    with _progress(work) as shown:
        try:
            for one in run_jobs(work, processes, shown.tell if shown else lambda _: None):
                if isinstance(one, LostRun):
                    lost.append(one)
                    continue
                finished.append(one)
                if shown:
                    shown.finish(one.job)
        except KeyboardInterrupt:
            return finished, lost, False
    return finished, lost, True


def _lost(runs: Sequence[LostRun], work: Sequence[RunJob]) -> LimitError:
    told = [f"{work[one.job].name}, seed {work[one.job].settings.seed}: {one.message}" for one in runs[:MOST_NAMED]]
    more = f"; {len(runs) - MOST_NAMED:,} more" if len(runs) > MOST_NAMED else ""
    return LimitError(f"{len(runs):,} of {len(work):,} runs lost: {'; '.join(told)}{more}", runs[0].fix)


@contextmanager
def _progress(work: Sequence[RunJob]) -> Iterator[SimulationProgress | None]:
    stream = term.err()
    if not stream.moves:
        yield None
        return
    from pdctl.render.simulation_progress import SimulationProgress  # late: rich, which only a terminal needs

    names = [f"{job.name}, seed {job.settings.seed}" for job in work]
    shown = SimulationProgress(names, stream)
    shown.start()
    try:
        yield shown
    finally:
        shown.stop()


def _directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # what is there stays until the runs are over
            pass
    except OSError as error:
        raise UsageError(
            f"--out {path}: {(error.strerror or str(error)).lower()}", "name a directory that can be written"
        ) from None
    return path


def _write_files(directory: Path, outcome: SimulationOutcome) -> Iterator[str]:
    """Write the document and the page; yield those that cannot be written, and why."""
    yield from _write(directory / DOCUMENT, as_json(to_document(outcome)) + "\n")
    if not outcome.policies:  # a page would show nothing
        _remove(directory / PAGE)
        return
    try:
        from pdctl.render.simulation_page import to_html  # late: plotly, which is an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        _remove(directory / PAGE)  # that of an earlier simulation would pass for this one's
        fix = program.install_command(["plotly"], "report")
        term.err().write(f"note: {directory / PAGE} is not written: plotly is not installed ({fix})")
        return
    yield from _write(directory / PAGE, to_html(outcome))


def _remove_earlier(directory: Path, written: set[str]) -> None:
    """Remove the decisions of an earlier simulation, which would pass for this one's."""
    for file in directory.glob("*.decisions.jsonl"):
        if DECISIONS.fullmatch(file.name) and file.name not in written:
            _remove(file)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        what = f"{file} of an earlier simulation is still there: {(error.strerror or str(error)).lower()}"
        raise StorageError(what, "remove it, or name another directory") from None


def _write(file: Path, text: str) -> Iterator[str]:
    try:
        user_files.write_whole(file, text)
    except OSError as error:
        yield f"{file.name} ({(error.strerror or str(error)).lower()})"
