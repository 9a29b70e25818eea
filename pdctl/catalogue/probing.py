"""What kept doctor from looking."""

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
        "run it there: {fix|pdctl doctor with the same arguments}",
        (Needs.ENDPOINT, Needs.ROUTER),
        "every engine and router",
        "observed",
    ),
    Entry(
        "PD902",
        "no-endpoints",
        Severity.ERROR,
        "nothing to look at: {observed|no instances and no addresses}",
        "Neither a topology with instances nor an address was given, or the deployment has no prefill or no decode, "
        "so no pair exists that could be checked. Next: the arguments of the command.",
        "pdctl doctor --router http://HOST:PORT, or --prefill URL,PORT --decode URL",
        (Needs.TOPOLOGY,),
        "every engine",
        "observed",
    ),
)
