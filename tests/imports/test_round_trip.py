"""What `pdctl plan -o shell` prints, imported, plans to the same commands on the same hosts."""

from __future__ import annotations

from pdctl.imports.found import Sort
from pdctl.imports.importer import import_texts
from pdctl.layout.instance_plan import Plan
from pdctl.layout.planner import plan_topology
from pdctl.manifests import kubernetes_validation
from pdctl.manifests.command_lines import parse
from pdctl.manifests.write import rendering
from pdctl.manifests.write.objects import stream
from pdctl.render.plan_table import shell_script
from pdctl.topology import resolve
from tests.cases import for_each
from tests.imports.made import imported

SHIPPED = sorted(resolve.known_topologies({}))
# Each changes what the import has to find out again: counts, shapes, ports, the router, one flag of one role.
CHANGES = (
    (),
    ("roles.prefill.instances=3", "roles.decode.instances=2"),
    ("ports.http=31000", "ports.bootstrap=9100", "ports.dist-init=21000", "router.port=8100"),
    ("roles.decode.args.watchdog-timeout=600", "roles.prefill.env.A_B=c d", "roles.prefill.mem-fraction=0.7"),
    ("router.kind=smg", "router.policy=random", "router.prefill-policy=cache_aware"),
    ("model.served-name=the name", "model.context-length=4096"),
)


def commands(plan: Plan) -> list[object]:
    """Where every process runs, with what environment, and its flags whatever their order."""
    found: list[object] = []
    for one in plan.instances:
        for command in one.commands:
            flags = {flag.name: flag.values for flag in parse((word, "") for word in command.argv).given}
            found.append((one.name, command.node, one.host_names[command.node], dict(command.env), flags))
    if plan.router is not None:
        given = parse((word, "") for word in plan.router.command.argv).given
        found.append((plan.router.host_name, sorted((flag.name, flag.values) for flag in given)))
    return found


CASES = [(name, sets) for name in SHIPPED for sets in CHANGES if not sets or not name.startswith("incidents/")]


@for_each(("name", "sets"), CASES, ids=[f"{name} {' '.join(sets[:1])}" for name, sets in CASES])
def test_a_plan_comes_back_as_it_was(name: str, sets: tuple[str, ...]) -> None:
    plan = plan_topology(resolve.load([resolve.topology_file(name)], sets, {}))
    assert plan.feasible
    made = imported("\n".join(shell_script(plan)) + "\n")
    assert commands(made.plan()) == commands(plan)
    assert not made.said(Sort.SUSPECT)
    assert not made.said(Sort.LEFT_OUT)
    assert not made.said(Sort.CHANGED)


@for_each("flavour", ["disaggregatedset", "rbg", "lws"])
def test_rendered_manifests_come_back_as_they_were(flavour: str) -> None:
    """Whoever edits what pdctl rendered gets it back as a topology; unedited, it renders to the same bytes."""
    image = "targets.kubernetes.image=lmsysorg/sglang:v0.5.23"
    versions = kubernetes_validation.VERSIONS[-1:]
    topology = resolve.load([resolve.topology_file("deepseek-v3-wide")], (image, "targets.slurm=null"), {})
    rendered = stream(rendering.render(topology, flavour, versions).objects)
    made = import_texts([("deploy.yaml", rendered)], {}, topology.name, {})
    again = resolve.of_text(made.text, "imported.yaml", {}).topology
    assert stream(rendering.render(again, flavour, versions).objects) == rendered
    assert [str(note) for note in made.notes] == [
        "left out: probes, affinities and security settings of the pods: pdctl renders its own"
    ]
