"""What prevented doctor from checking."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD901",
        "not-reachable-from-here",
        Severity.ERROR,
        "{instance|an address} cannot be reached from this host: {observed|nobody answers}",
        "Nothing answered at its address, so nothing can be said about it: every check that needs it is unknown, "
        "not passed. Doctor looks from the host it runs on; behind a cluster's network that may simply be the wrong "
        "place. Next: run doctor where a decode runs.",
        "run this on a host of the deployment: {fix|pdctl doctor}",
        (Needs.ENDPOINT, Needs.ROUTER),
        "every engine and router",
        "observed",
    ),
    Entry(
        "PD902",
        "no-endpoints",
        Severity.ERROR,
        "no pair to check: {observed|no instance and no address was given}",
        "Neither a topology with instances nor an address was given, or the deployment has no prefill or no decode, "
        "so no pair exists that could be checked. Next: the arguments of the command.",
        "{fix|pdctl doctor --router http://HOST:PORT}",
        (Needs.TOPOLOGY,),
        "every engine",
        "observed",
    ),
    Entry(
        "PD903",
        "not-sglang",
        Severity.ERROR,
        "{url|an address} answers, but it is not an {what|SGLang engine or router}: {observed|404 on /server_info}",
        "Something listens at that address and speaks HTTP, and what it answers is not what an SGLang engine "
        "(/server_info) or router (/workers) answers. Usual reasons: another program has the port, a proxy or a "
        "dashboard stands in front, the port is the bootstrap server's or the metrics', or an engine's address was "
        "given as a router's. Nothing was learned about the deployment: every check that needs this server is "
        "unknown, not passed. Next: what listens there.",
        "give the address of an SGLang server instead of {url}",
        (Needs.ENDPOINT, Needs.ROUTER),
        "every engine and router",
        "observed",
    ),
    Entry(
        "PD904",
        "api-key-required",
        Severity.ERROR,
        "{url|a server} asks for an API key: {observed|401}",
        "The server was started with an API key and refuses requests without it, including those that only ask for "
        "its state. Nothing was learned about it: every check that needs this server is unknown, not passed. pdctl "
        "reads the key from an environment variable, so that it appears in no command line and no report. Next: the "
        "key that the server was started with.",
        "run the same command with --key-env NAME, the variable that holds the key",
        (Needs.ENDPOINT, Needs.ROUTER),
        "every engine and router with an API key",
        "observed",
    ),
    Entry(
        "PD905",
        "program-not-written",
        Severity.WARNING,
        "{instance|a service} has only flags ({observed|--disaggregation-mode prefill}): which program its image "
        "starts is not known",
        "Its command begins with a flag, so the entrypoint of its image is the program, and the files do not say "
        "which one that is. The flags read like those of an engine or of a router. It was left out: every check that "
        "needs it, its ports or its addresses sees a deployment without it. pdctl knows the entrypoints of the "
        "published images of sglang-router, sgl-model-gateway and smg. Next: the ENTRYPOINT of the image.",
        "write the program in front of the flags (python3 -m sglang_router.launch_router …), as the image has it",
        (Needs.TOPOLOGY,),
        "every engine and router in a container",
        "sglang docker/gateway.Dockerfile, smg docker/Dockerfile",
    ),
)
