"""Routers, probes, time limits and rollouts: what keeps a deployment alive, and what only claims to."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD601",
        "breakers-open",
        Severity.ERROR,
        "the router has stopped using {worker|a worker}: the circuit breaker is {observed|open}",
        "A router takes a worker out for 60 s when its circuit breaker opens (ten failures in a row open it, three "
        'successes close it). With every breaker of a role open it answers 503 "all circuits open or unhealthy" to '
        "everything, while /workers says is_healthy: true and /readiness says ready; only the metric "
        "smg_worker_cb_state shows it. sglang-router counts a failed pair against both members, so one broken prefill "
        "opens the decodes' breakers as well, and older ones counted a client's 4xx too. A breaker is an effect: find "
        'the first failures before it. Next: the router\'s log just before "Circuit breaker state transition".',
        "repair the first failure in the log of the router and wait 60 s",
        (Needs.ROUTER,),
        "sglang-router 0.2.x to 0.3.2, smg 1.13.0",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited(
            "InferenceX#2255 sglang#12355 sglang#13894 sglang#8557 aibrix#1351 sglang#31206 sglang#25811 sglang#29017"
        ),
    ),
    Entry(
        "PD602",
        "router-not-ready",
        Severity.ERROR,
        "the router is not ready: {observed|a role has no healthy worker}",
        "/readiness answers 503 while a role has no registered, healthy worker. Registration retries for up to 1800 "
        "s, and a worker that cannot be reached is not listed at all. A ready router proves little: /readiness knows "
        'nothing of breakers, ports or roles. Next: GET /workers, then the router\'s log, "detect_connection_mode".',
        "curl -sS {url}/workers",
        (Needs.ROUTER,),
        "sglang-router 0.3.2, smg 1.13.0",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
    ),
    Entry(
        "PD603",
        "worker-missing-from-router",
        Severity.ERROR,
        "{instance|an instance} runs, but the router does not list it",
        "A worker that could not be reached at registration stays out of /workers until it can be, and the router "
        "serves with the rest and calls itself ready. Two --prefill of the same URL, or one URL in both roles, also "
        'leave one out with a single line in the log ("already exists"). Old routers were reported to list both '
        'sides and still find no pair ("Failed to select PD pair"), when health, policy or model id did not '
        "match. Next: the address in the router's list against the engine's.",
        'curl {router}/workers -H \'content-type: application/json\' -d \'{"url": "{url}", "worker_type": '
        '"{role}", "bootstrap_port": {port}}\'',
        (Needs.ROUTER,),
        "every router",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#8557 aibrix#1351"),
    ),
    Entry(
        "PD604",
        "instance-down",
        Severity.ERROR,
        "{instance|an instance} does not answer: {observed|refused, or silent}",
        'The process is gone, still starting, or stuck. Rooms it held fail on the other side with "might be dead" or '
        "a timeout; those are echoes. An instance that broke in a role switch answers 503 until it is started again; "
        'a prefill of sglang 0.5.23 that keeps a prefix cache and became a decode dies with "pool memory leak '
        'detected" (start it with --disable-radix-cache). Next: the last lines of its own log.',
        "{look|pdctl status}",
        (Needs.ENDPOINT, Needs.LOG),
        "every engine",
        "observed",
    ),
    Entry(
        "PD605",
        "health-lies",
        Severity.INFO,
        "{instance|an engine} answers {observed|its health check}, which does not prove that prefill reaches decode",
        "/health says that the process listens. /health_generate and SGLang's warm-up run one request against a "
        "made-up peer (host 2.2.2.2, room 0), so they pass on a decode whose KV path is broken. sglang-router's own "
        "/health_generate says yes even with no decode alive. Only a real request through a pair proves the pair. "
        "Next: the canary.",
        "{next|run the same command with --canary}",
        (Needs.ENDPOINT, Needs.ROUTER),
        "every SGLang and every router",
        "sglang 0.5.23 source; measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#8115 sglang#8063 smg#1266"),
    ),
    Entry(
        "PD606",
        "timeouts-neutered",
        Severity.WARNING,
        "{instance|an engine}: {observed|a very long time limit} makes failures look like hangs (default "
        "{expected|300 s})",
        "Values of 100000 s, and heartbeat failures counted in millions, come from benchmark recipes where a slow "
        "start must not end the run. In production they mean that a lost room is never given up: slots leak, queues "
        "fill, and the first sign is that nothing works. The timeouts were at 1200 s in one report and the rooms "
        "still failed: look for the cause instead. Next: where the value was copied from.",
        "remove {name|the setting}",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; published recipes",
        reports=cited("sglang#7998 sglang#10204"),
    ),
    Entry(
        "PD607",
        "k8s-probe",
        Severity.WARNING,
        "{instance|a pod}: {observed|its readiness probe succeeds before the model is loaded}",
        "A TCP or `exit 0` readiness probe succeeds before the model is loaded, and decodes are sent to a bootstrap "
        "server without ranks. /health_generate as liveness needs a free slot in the batch and gets a busy, healthy "
        "pod killed; so does a failure threshold of 1 or a timeout shorter than a forward pass. Neither kind of probe "
        "proves that prefill reaches decode. Next: the container's probes.",
        "{fix|set readinessProbe to httpGet: {path: /health, port: 30000}}",
        (Needs.TOPOLOGY,),
        "every SGLang on Kubernetes",
        "sglang 0.5.23 source; published Kubernetes samples",
        reports=cited("sglang#8115 sglang#8063 sglang#8444 dynamo#2137 dynamo#2124 smg#1266"),
    ),
    Entry(
        "PD608",
        "untagged-image",
        Severity.WARNING,
        "{instance|a pod} runs image {observed|X:latest}: nobody can say which release that is",
        "An image without a tag, or :latest, is whatever was pushed last when the node pulled it. Prefill and decode "
        "pulled on different days are different releases, which may not understand each other (PD310); published "
        "samples often pin the router and not the engine. Next: the images of all roles.",
        "pin the image to a tag: {image}:TAG",
        (Needs.TOPOLOGY,),
        "every SGLang",
        "published Kubernetes samples",
    ),
    Entry(
        "PD609",
        "grace-too-short",
        Severity.WARNING,
        "{instance|a pod} is killed {observed|too soon} after SIGTERM: requests in flight need up to {expected|180 s}",
        "SGLang aborts what is in flight when it is told to end, and Kubernetes kills the pod when the grace period "
        "is over (30 s unless set). Each rollout then drops the requests of that pod, and each dropped prefill "
        "takes rooms of decode with it. Drain from the outside in: router first, then prefill, then decode. "
        "sglang-router itself waits up to 180 s for its requests. Next: terminationGracePeriodSeconds and the "
        "longest answer.",
        "set terminationGracePeriodSeconds to {seconds}",
        (Needs.TOPOLOGY,),
        "every SGLang on Kubernetes",
        "measured with sglang-router 0.3.2; Kubernetes documentation",
        reports=cited("smg#1172 dynamo#3508 dynamo#11173 llm-d#2444"),
    ),
    Entry(
        "PD610",
        "canary-failed",
        Severity.ERROR,
        "{prefill|a prefill} cannot feed {decode|a decode} ({observed|no complete answer came back})",
        "A real request with a fresh room was sent to both legs of this pair, and no complete answer came back within "
        "its deadline. A pair that fails alone points at the path between the two (port, address, NIC); a row of them "
        "at the prefill, a column at the decode. Streams that begin with 200 and end early count as failed, and so "
        "does a finish_reason of abort. Next: pdctl trace-room with the room it names.",
        "pdctl trace-room {room}",
        (Needs.CANARY,),
        "every SGLang",
        "observed",
        reports=cited("sglang#32267 sglang#7338 vllm-ascend#12168 vllm#52276 InferenceX#2255"),
    ),
    Entry(
        "PD611",
        "answers-differ",
        Severity.ERROR,
        "answers through {prefill|one prefill} and {decode|one decode} differ from those of the other pairs: "
        "{observed|another text}",
        "The same greedy prompt must give the same text through every pair. One that differs is silent corruption: "
        "pages written to the wrong place or reused while an old transfer still wrote, another checkpoint, another "
        "dtype. It was reported as accuracy falling from 96 to 46 % with the number of requests served, all of them "
        "HTTP 200. From 0.5.21 on decode keeps the pages of a failed room until the transfer has drained, and can "
        "compare checksums. "
        "Next: model, page size, dtype and layout of the pair; then --disaggregation-enable-kv-checksum on both "
        "(0.5.21 and later).",
        "run pdctl doctor --canary with one instance left out at a time",
        (Needs.CANARY,),
        "every SGLang; protections came with 0.5.21",
        "sglang 0.5.13 to 0.5.23 source; public reports",
        reports=cited("sglang#23020 sglang#22716 sglang#17259 sglang#24527 sglang#35049 sglang#32564"),
    ),
    Entry(
        "PD612",
        "slow-error",
        Severity.WARNING,
        "{instance|the deployment} took {observed|too long} to refuse a bad request; under {expected|5 s} is expected",
        "A request that one side refuses at once must fail at once. Where the other leg is not cancelled, the client "
        "waits for its timeout, up to 300 s. sglang-router 0.3.2 waits for decode to end before it reacts to a failed "
        "prefill; smg cancels the decode's leg. With NIXL before 0.5.20 decode is not told of a failure at prefill at "
        'all. Next: the router\'s log, "Prefill server error", "This will cause decode timeout".',
        "use a router that cancels the other leg (smg 1.13.0, or that of pdctl)",
        (Needs.CANARY,),
        "sglang-router up to 0.3.2; SGLang with NIXL before 0.5.20",
        "measured with sglang-router 0.3.2 and smg 1.13.0; sglang 0.5.19 and 0.5.20 source "
        "(disaggregation/nixl/conn.py)",
        reports=cited("sglang#9726 sglang#29017 aibrix#2289 llm-d#2433"),
    ),
    Entry(
        "PD613",
        "queue-leak",
        Severity.ERROR,
        "{instance|an engine} still holds requests after every request has ended: {observed|a queue is not empty}",
        "A queue that does not return to zero after the last request has leaked a slot: a client that left, an "
        "aborted transfer, or a room whose other half never came. Leaks add up until nothing is admitted. With NIXL "
        "before 0.5.18 prefill has no bootstrap timeout, so such a room stays for good. Next: trace-room for the "
        "rooms it names, and whether a cancel is passed on.",
        "restart {instance}",
        (Needs.CANARY,),
        "every SGLang; NIXL before 0.5.18 worst",
        "sglang 0.5.3 to 0.5.23 source; public reports",
        reports=cited("sglang#8177 sglang#6258 sglang#9817 sglang#27372 sglang#36707 smg#2114 vllm#46283 vllm#43509"),
    ),
    Entry(
        "PD614",
        "public-bind",
        Severity.WARNING,
        "{instance|an engine} listens on {observed|every address}: anyone who can reach the ports can use them",
        "Neither the bootstrap server of SGLang nor its ranks' ports have any authentication (pdctl's own engine asks "
        "for proof there where it has a deployment secret: docs/security.md). A stranger can register ranks, read "
        "addresses, announce rooms that prefill keeps for ever because no request comes for them, or crash a thread "
        "with junk. --api-key protects the HTTP API alone. Only the router and the other engines need to reach an "
        "engine. Next: who can reach the port, not only who is meant to.",
        "start {instance} with an address of the private network as --host",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.HOST),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#39428 sglang#9931"),
    ),
    Entry(
        "PD615",
        "router-gap",
        Severity.INFO,
        "round robin on both sides never uses {unused|2} of the {pairs|4} pairs",
        "Two round-robin counters advance together: with prefill and decode counts that share a divisor, prefill i "
        "always meets the same decodes. Measured with 2 x 2: two of the four pairs got every request. A broken pair "
        "among the others stays hidden until a restart shifts the order, and a broken pair among the used ones "
        "looks like a broken worker. Next: --prefill-policy and --decode-policy.",
        "start the router with --decode-policy power_of_two",
        (Needs.TOPOLOGY, Needs.ROUTER),
        "sglang-router 0.3.2, smg 1.13.0",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
    ),
    Entry(
        "PD616",
        "environment-differs-between-ranks",
        Severity.WARNING,
        "{instance|an instance}: {observed|leader and worker are started differently}",
        "The ranks of one instance must run the same code with the same settings. Where leader and worker are "
        "written out twice, the copies drift: another variable, another flag, another image. The result is an "
        "instance that does not form, is slower than it should be, or misreads its peers. A published sample "
        "differs in a transfer thread count. Next: the two pod templates side by side.",
        "{fix|write leader and worker from one template}",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang on several nodes",
        "published Kubernetes samples",
        reports=cited("dynamo#8386 LMCache#990 llm-d#2110"),
    ),
    Entry(
        "PD617",
        "heartbeat-false-alarm",
        Severity.WARNING,
        "{instance|decode}: {observed|a busy prefill is taken for dead}",
        "Decode asks each prefill's bootstrap server for /health every 5 s and gives the prefill up after two "
        'misses in a row; all its rooms fail with "Lost connection with prefill instance" (before 0.5.14 also '
        '"Losing connection"). An event loop starved by load or compilation misses beats while the prefill is '
        "well. Tight values make it worse; values in the millions hide real deaths (PD606). Next: whether the "
        "prefill died at that time.",
        "set SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE=6 on decode",
        (Needs.TOPOLOGY, Needs.LOG),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#6263 sglang#7998"),
    ),
    Entry(
        "PD618",
        "router-start-refused",
        Severity.ERROR,
        "the router cannot serve these roles: {observed|a role has no address}",
        "A router in PD mode needs at least one --prefill and one --decode, or service discovery with selectors: "
        'otherwise it ends with "PD disaggregation mode requires --prefill" (a missing --decode alone is accepted: '
        'every request then gets 503). It also ends at once if the URL of a worker has no http:// in front ("URL must '
        'start with http://, https://, or grpc://"), or no port behind the colon, as where the bootstrap port follows '
        "a comma: it is a word of its own. Some smg builds after August 2026 switch to another mode when discovery is "
        'on, and crash-loop with "Regular mode with service discovery requires a non-empty selector". Next: the first '
        "line of its log.",
        "{fix|start the router with --pd-disaggregation --prefill http://HOST:PORT BOOTSTRAP-PORT --decode "
        "http://HOST:PORT}",
        (Needs.TOPOLOGY,),
        "sglang-router 0.2.x to 0.3.2; smg builds after 2026-08-30",
        "measured with sglang-router 0.3.2 and smg 1.13.0; public reports",
        reports=cited("sglang#12535 miles#3133 smg#2372"),
    ),
    Entry(
        "PD619",
        "variable-not-expanded",
        Severity.ERROR,
        "{instance|a pod}: {observed|a variable} reaches the engine unexpanded",
        "Kubernetes expands $(NAME) in command and args, and only for variables the container defines (or its "
        "operator adds). ${NAME} and $NAME are shell syntax, and stay as they are where no shell runs. The engine "
        "then takes the text for a host or a number and dies, or waits for a rendezvous that cannot happen. Next: env "
        "of that container.",
        "write $({name}) and define {name} under env",
        (Needs.TOPOLOGY,),
        "every SGLang on Kubernetes",
        "Kubernetes documentation; public reports",
        reports=cited("dynamo#8386 llm-d#2110"),
    ),
    Entry(
        "PD620",
        "silent-fallback",
        Severity.WARNING,
        "decode serves requests alone, without prefill",
        "An endpoint picker that finds no prefill can let decode compute the prompt itself. Answers are right and "
        'slow, and nothing is logged: "declined" and "no endpoint" were treated alike. Next: whether prefill '
        "has seen any request at all.",
        "start an endpoint of the prefill pool",
        (),
        "llm-d's endpoint picker, up to August 2026",
        "public reports",
        "llm-d's endpoint picker has no list of workers or pairs that pdctl reads; with SGLang's routers a pair "
        "without prefill fails instead",
        reports=cited("llm-d-router#2521 llm-d-router#2427"),
    ),
    Entry(
        "PD621",
        "host-network-dns",
        Severity.WARNING,
        "{instance|a pod} uses the host's network with dnsPolicy {observed|unset}: cluster names will not resolve",
        "A pod with hostNetwork takes the node's resolver unless told otherwise, so Service names, and a rendezvous "
        "address by name, are unknown there. The instance then waits for its leader, or the router cannot reach the "
        "pod by the name it was given. Next: nslookup of that name inside the pod.",
        "set dnsPolicy of that pod to ClusterFirstWithHostNet",
        (Needs.TOPOLOGY,),
        "every SGLang on Kubernetes",
        "Kubernetes documentation; public reports",
        reports=cited("dynamo#8386 LMCache#990"),
    ),
)
