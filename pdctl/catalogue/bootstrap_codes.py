"""Bootstrap servers, ports and addresses: how a decode finds its prefill, and how that fails."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD201",
        "bootstrap-port-null",
        Severity.ERROR,
        "{sender|the router} sends no bootstrap port for {instance|a prefill}: decode will dial "
        "{observed|its own port} instead of {expected|the prefill's}",
        "A router that was not told a prefill's bootstrap port sends null with every request, and the receiving "
        "decode silently replaces null with its own --disaggregation-bootstrap-port. Where that is not the prefill's "
        "port, the room's page list goes to another prefill or to nobody: the prefill that got the request waits for "
        "a decode that never calls, decode waits for KV cache that never comes, until each gives up: after 300 s by "
        "default, in older releases with NIXL never. Several prefills on one host: the first works, every request to "
        "the others hangs. Health, readiness and the servers' own warm-up stay green, because none of them crosses "
        "from prefill to decode. Recognised by `None` beside the URL in the router's start line, by a prefill entry "
        "without the key bootstrap_port in the router's GET /workers, and by a prefill that logs a room it never got "
        "a request for. Next: the router's command line.",
        "start the router with the port of every prefill: --prefill {url} {port}",
        (Needs.TOPOLOGY, Needs.ROUTER),
        "SGLang 0.5.3 to 0.5.23 behind sglang-router up to 0.3.2, smg 1.13.0 or mini_lb, when started without ports",
        "sglang 0.5.3 to 0.5.23 source; measured with sglang-router 0.3.2, smg 1.13.0 and mini_lb",
        reports=cited("sglang#5704 sglang#8644"),
    ),
    Entry(
        "PD202",
        "bootstrap-port-wrong",
        Severity.ERROR,
        "{sender|the router} sends bootstrap port {observed|A} for {instance|a prefill}, which listens on {expected|B}",
        "Decode dials the address it was sent. Nobody listens there, so it cannot learn the prefill's ranks: it logs "
        '"Could not fetch prefill parallel info from bootstrap_addr" (older releases: "Error fetching prefill '
        'parallel info", and some crash the scheduler), the request fails after its retries, and the prefill waits '
        "out its timeout (300 s by default). The routers check nothing: smg 1.13.0 tries one TCP connection at "
        "registration and only warns. Next: compare the port in the router's list with "
        "--disaggregation-bootstrap-port of that prefill.",
        "start the router with --prefill {url} {port}",
        (Needs.TOPOLOGY, Needs.ROUTER, Needs.ENDPOINT),
        "every SGLang and every router",
        "sglang 0.5.3 to 0.5.23 source; measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("Mooncake#1207 sglang#11747 sglang#9266"),
    ),
    Entry(
        "PD203",
        "bootstrap-ports-swapped",
        Severity.ERROR,
        "the router has the bootstrap ports of {instance|one prefill} and {other|another} swapped",
        "Both ports answer, so every check of a single server is green. But each request goes to one prefill while "
        "its decode is sent to the other one's bootstrap server: the prefill that was contacted keeps a room for "
        "which it has no request, the one with the request never hears from a decode, and every room ends at the 300 "
        "s timeout. Recognised by two prefill logs, each of which has rooms whose requests went to the other. Next: "
        "the order of the --prefill arguments.",
        "start the router with --prefill {url} {port} --prefill {other_url} {other_port}",
        (Needs.TOPOLOGY, Needs.ROUTER, Needs.ENDPOINT),
        "every SGLang and every router",
        "sglang 0.5.3 to 0.5.23 source; measured with sglang-router 0.3.2",
        reports=cited("sglang#5704 sglang#8644"),
    ),
    Entry(
        "PD204",
        "bootstrap-port-collision",
        Severity.ERROR,
        "{instance|one prefill} and {other|another} on one host are both given bootstrap port {observed|8998}",
        "Only one of the two can listen. SGLang does not stop when its bootstrap server cannot bind: a thread logs "
        '"Server error" and the process goes on, healthy and without a bootstrap server. Decodes then reach the '
        "neighbour's bootstrap server and fetch the wrong prefill's ranks. 8998 is the default of every instance, "
        "so two prefills on one host collide unless one is told otherwise. Next: the start-up log of the second "
        "prefill.",
        "start {instance|one of them} with --disaggregation-bootstrap-port {port}",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("ishandhanani/srt-slurm#147 sglang#20952"),
    ),
    Entry(
        "PD205",
        "bootstrap-unreachable",
        Severity.ERROR,
        "nothing answers as a bootstrap server at the bootstrap address of {instance|a prefill}: {observed|refused, or "
        "no route}",
        "The first thing a decode does for a prefill is GET /route at its bootstrap port. If that port cannot be "
        "reached from the decode's network, every room to this prefill fails, whatever else works. Usual causes: the "
        "prefill listens on 127.0.0.1 (SGLang's default host), a firewall or Kubernetes Service passes only the HTTP "
        "port, the bootstrap server could not bind and the process went on without it, or the instance is not a "
        "prefill at all. Only prefill listens on this port; decode dials. Next: the prefill's own host, then the path "
        "from the decode's host.",
        "run this on the host of the decode: curl -sS http://{host}:{port}/health",
        (Needs.ENDPOINT,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("Mooncake#1207 sglang#11747 sglang#9266"),
    ),
    Entry(
        "PD206",
        "bootstrap-port-is-http",
        Severity.ERROR,
        "{sender|the router} sends port {observed|A} for {instance|a prefill}: that is its HTTP port, the bootstrap "
        "server listens on {expected|B}",
        "The engine's HTTP server answers 404 to a decode's GET /route, so no rank of the prefill can be found and "
        'every room fails with "Could not fetch prefill parallel info". The mistake hides because the port is open '
        "and answers /health with 200. It is right in one case only: SGLANG_RUST_SERVER serves the bootstrap routes "
        "on the HTTP port. Next: the second value after --prefill on the router's command line.",
        "start the router with --prefill {url} {port}",
        (Needs.TOPOLOGY, Needs.ROUTER, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("Mooncake#1207 sglang#11747"),
    ),
    Entry(
        "PD207",
        "decode-default-port",
        Severity.WARNING,
        "the router sends no bootstrap port for {instance|a prefill}; it works only because decode's own default is "
        "{expected|that port} too",
        "The router sends null, decode fills in its own --disaggregation-bootstrap-port, and today that is the "
        "prefill's port on the prefill's host. A second prefill on that host, another port, or a changed decode "
        "flag turns it into requests that hang for 300 s. On decode the flag opens no listener: only prefill "
        "listens and decode dials, so this silent default is the only thing the flag does there. Next: the router's "
        "command line.",
        "start the router with --prefill {url} {port}",
        (Needs.TOPOLOGY, Needs.ROUTER),
        "SGLang 0.5.3 to 0.5.23 behind sglang-router up to 0.3.2, smg 1.13.0 or mini_lb",
        "sglang 0.5.3 to 0.5.23 source; measured with sglang-router 0.3.2, smg 1.13.0 and mini_lb",
        reports=cited("dynamo#4855"),
    ),
    Entry(
        "PD208",
        "loopback-across-hosts",
        Severity.ERROR,
        "the router reaches {instance|a server} as {observed|127.0.0.1}: decode on another host will dial itself",
        "The router passes the host of the prefill's URL on as bootstrap_host, as typed. A decode elsewhere then "
        "connects to its own loopback: \"HTTPConnectionPool(host='127.0.0.1', port=8998)\" with connection refused, "
        "or, worse, the bootstrap server of a neighbour that happens to listen there. It works as long as everything "
        "shares one host. Next: the URLs on the router's command line, and --host of the engines (SGLang listens on "
        "127.0.0.1 unless told otherwise).",
        "start the router with an address that every host reaches: --prefill http://{host}:{port}",
        (Needs.TOPOLOGY, Needs.ROUTER),
        "every SGLang and every router",
        "sglang 0.5.3 to 0.5.23 source; measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#11747 sglang#5422 dynamo#12026"),
    ),
    Entry(
        "PD209",
        "ranks-not-registered",
        Severity.ERROR,
        "{instance|a prefill}: only {observed|some} of {expected|its} ranks have registered with its bootstrap server",
        "Every prefill rank announces its address to the bootstrap server of its instance: dp x cp x tp x pp of "
        'them. Until all have, the server answers 503 "Prefill server not fully registered yet" (0.5.10 and '
        "later; older ones answer with null sizes) and no room can begin, although /health says 200. A rank that is "
        "missing for good was started with another bootstrap port or --dist-init-addr, cannot reach node 0, or "
        "(before 0.5.12: one attempt only) tried before the server was up. A restarted rank is counted again, so the "
        'number can also be too high. Next: the prefill\'s log, "failed to register to bootstrap server".',
        "restart the prefill instance with the same --disaggregation-bootstrap-port and --dist-init-addr on every node",
        (Needs.ENDPOINT,),
        "every SGLang; the count is in the answer from 0.5.10",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#27608 sglang#25125 srt-slurm#121 sglang#36234"),
    ),
    Entry(
        "PD210",
        "rank-unreachable",
        Severity.ERROR,
        "{instance|a prefill} registered a rank at {observed|an address}, which accepts no connection from here",
        "Each room's page list goes straight from a decode rank to the ZMQ port of a prefill rank, at the address the "
        "rank registered: a random port on an address it found for itself (the first interface that looks right, "
        "unless SGLANG_HOST_IP says otherwise). If decode cannot reach it, the message waits in a queue, nothing is "
        "logged on prefill, and the room ends at the bootstrap timeout. The usual reasons are bridges, docker "
        "networks and second NICs, then firewalls that pass only known ports. Next: SGLANG_HOST_IP on the prefill's "
        "host, then the firewall.",
        "set SGLANG_HOST_IP on every host of {instance} to an address that decodes reach",
        (Needs.ENDPOINT,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#9266 sglang#11747"),
    ),
    Entry(
        "PD211",
        "stale-rank-addresses",
        Severity.WARNING,
        "{instance|a prefill} is reached through {observed|a stable name}: decodes keep its old rank addresses after "
        "it is replaced",
        "Decode remembers the ranks of a prefill by the address it was given, and forgets them only when two "
        "heartbeats in a row fail. Behind a Service or another stable name a replaced prefill answers the next "
        "heartbeat at once, so the cached rank endpoints of the dead process stay, and every request through them "
        "dies at the 300 s waiting timeout with nothing at all in the prefill's log. A restart within two "
        "heartbeats (10 s) on the same address does the same without a Service. From 0.5.19 a decode also drops the "
        "entry after such a timeout. Next: whether the prefill was restarted after the decode.",
        "give the router the addresses of the pods (--service-discovery) instead of a Service name",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang; from 0.5.19 on it recovers after the first failed room",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#34289 sglang#33789 nixl#795 sglang#10365 sglang#6215 sglang#16903"),
    ),
    Entry(
        "PD212",
        "wildcard-registration",
        Severity.WARNING,
        "{instance|a prefill} listens on 0.0.0.0 and this release registers its ranks at http://0.0.0.0",
        "A single-node prefill registers its ranks at the address it listens on. Before 0.5.14 a wildcard was not "
        "translated: the rank calls http://0.0.0.0, which proxies refuse with 403; the server only prints warnings, "
        'stays up, and answers every decode with 503 "not fully registered". With --dist-init-addr the registration '
        "goes there instead and the wildcard does no harm. Next: the prefill's log, \"Prefill instance failed to "
        'register to bootstrap server".',
        "start {instance} with the address of its own host as --host",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "SGLang before 0.5.14, single-node prefill without --dist-init-addr",
        "sglang 0.5.13.post1 and 0.5.14 source (disaggregation/common/conn.py)",
        reports=cited("sglang#27608 sglang#25125"),
    ),
    Entry(
        "PD213",
        "service-hides-bootstrap-port",
        Severity.ERROR,
        "Service {service|X} does not publish the bootstrap port {port|8998} of {instance|its prefill}",
        "The router sends the Service's name as bootstrap host. A Service forwards only the ports it lists, so a "
        "decode that dials the bootstrap port at this name gets no answer, while HTTP through the same name works. "
        "A headless Service (clusterIP: None) resolves to the pod and hides nothing. Next: the ports of the "
        "Service.",
        "add {name: bootstrap, port: {port}} to the ports of Service {service}",
        (Needs.TOPOLOGY,),
        "every SGLang on Kubernetes",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("Mooncake#1207 sglang#9266"),
    ),
    Entry(
        "PD214",
        "annotation-missing",
        Severity.ERROR,
        "{instance|a prefill} has no annotation sglang.ai/bootstrap-port: the router will send null for its pods",
        "With Kubernetes discovery a router learns the bootstrap port of a prefill pod from the annotation "
        "sglang.ai/bootstrap-port alone. Without it the port is unknown, the router sends null, and decode guesses "
        "its own (see PD201). The annotation belongs on the pod template of prefill, not on the workload and not on "
        "decode. An older spelling, sglang.ai/mooncake.bootstrap-port, is not read any more. Next: the pod "
        "template's metadata.",
        'add sglang.ai/bootstrap-port: "{port}" to the annotations of the prefill pod template',
        (Needs.TOPOLOGY,),
        "every router that discovers pods",
        "sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#7361 llm-d#1709 aibrix#1684"),
    ),
    Entry(
        "PD215",
        "annotation-differs",
        Severity.ERROR,
        "{instance|a prefill}: annotation sglang.ai/bootstrap-port says {observed|A}, but the engine listens on "
        "{expected|B}",
        "A discovering router believes the annotation and never asks the pod. When it differs from "
        "--disaggregation-bootstrap-port, or is not a number, every room to this prefill goes to a port where "
        "nobody listens or somebody else does. Sidecars have the same trap: their environment variable and the "
        "engine's flag must agree. Next: the pod template beside the engine's arguments.",
        'set the annotation sglang.ai/bootstrap-port to "{port}"',
        (Needs.TOPOLOGY, Needs.ROUTER),
        "every router that discovers pods",
        "sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#7361 llm-d#1709 aibrix#1684"),
    ),
    Entry(
        "PD216",
        "router-misses-instances",
        Severity.ERROR,
        "the router lists only {observed|some} of {expected|the} {role|prefill or decode} instances",
        "Instances that are not listed never get traffic, and nothing reports it: the pods are ready, their queues "
        "are empty, the others are overloaded. One Service name in front of several replicas is worse: the request "
        "goes to one pod and decode's bootstrap call to another, so most rooms never meet. Published Kubernetes "
        "samples have this mistake: replicas above 1 with one URL for each role. Next: the router's start line "
        "against the number of pods.",
        "list every instance on the command line of the router",
        (Needs.TOPOLOGY, Needs.ROUTER),
        "every router",
        "routers' command lines; published Kubernetes samples",
    ),
    Entry(
        "PD217",
        "dist-init-host-differs",
        Severity.WARNING,
        "{instance|a prefill}: ranks register at {observed|one address}, but the router sends decodes to "
        "{expected|another}",
        "The ranks of a multi-node prefill register at the host of --dist-init-addr; the bootstrap server listens "
        "on --host of node 0; decodes are sent to the host of the prefill's URL. The three must be the same "
        "machine, on an interface that all of them reach. If they are not, registration never completes, or decode "
        "asks the wrong node. Next: the three addresses, on node 0.",
        "use one address of node 0 for --dist-init-addr and for the router's --prefill URL",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang, prefill on several nodes",
        "sglang 0.5.8 to 0.5.23 source",
        reports=cited("srt-slurm#121 sglang#36234"),
    ),
    Entry(
        "PD218",
        "port-collision",
        Severity.ERROR,
        "port {observed|N} is wanted twice: {instance|one server} and {other|another}",
        "Besides its HTTP port an SGLang instance takes a bootstrap port (prefill), a rendezvous port, and with DP "
        "attention a block of internal ports that is counted from the rendezvous port or from --port + 233. Two "
        "instances on one host with neighbouring ports overlap without any flag looking equal. The one started later "
        'ends with "Address already in use" or "port_base at N is not available in 30 seconds"; where only a side '
        "channel collides, it may talk to the other instance. Next: the port list of both (`pdctl plan` prints it).",
        "{fix|move one of them with --port, --dist-init-addr or --disaggregation-bootstrap-port}",
        (Needs.TOPOLOGY, Needs.HOST),
        "every SGLang; the derived ports differ by release",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("ishandhanani/srt-slurm#147 sglang#20952 ray#60057 ray#63741 vllm-ascend#4725"),
    ),
    Entry(
        "PD219",
        "rust-server-port",
        Severity.ERROR,
        "{instance|a prefill} runs the Rust server: its bootstrap port is its HTTP port {expected|A}, not {observed|B}",
        "With SGLANG_RUST_SERVER the bootstrap routes are served on the API port and the separate port does not "
        "exist. SGLang logs that disaggregation_bootstrap_port changed, and refuses to start with an explicit value "
        "other than the API port. Router and decode must use the API port as bootstrap port; anything that still says "
        "8998 waits in vain. Next: the environment of the prefill, then the router's port for it.",
        "drop --disaggregation-bootstrap-port and start the router with --prefill {url} {port}",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "SGLang 0.5.17 and later with SGLANG_RUST_SERVER",
        "sglang 0.5.17 to 0.5.23 source (arg_groups/pd_disaggregation_hook.py)",
        reports=cited("sglang#33125"),
    ),
    Entry(
        "PD220",
        "router-host-not-ip",
        Severity.ERROR,
        "the router cannot listen on `{observed|localhost}`: it takes only an IP address",
        "sglang-router reads --host as a socket address and accepts an IPv4 literal or an IPv6 literal in brackets. A "
        'host name (also localhost) or a bare IPv6 address makes the start fail with "invalid socket address syntax", '
        "which names neither the flag nor the value. Next: --host on the router's command line.",
        "start the router with --host {expected|ADDRESS}",
        (Needs.TOPOLOGY, Needs.LOG),
        "sglang-router 0.2.x to 0.3.2; smg takes a bare IPv6 address, and names the value",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
        reports=cited("sglang#12535 miles#3133"),
    ),
    Entry(
        "PD221",
        "service-selects-nothing",
        Severity.ERROR,
        "Service {instance|NAME} selects no pod: its selector is {observed|app: x}, and the pods have "
        "{expected|other labels}",
        "A Service finds its pods by their labels alone. When no pod carries all labels of the selector, the Service "
        "has no endpoints: its name resolves, and every connection is refused or times out. Nothing reports it: the "
        "pods are ready, the Service exists, and the router says that the worker cannot be reached. Usual reasons are "
        "a typo, labels on the workload instead of on its pod template, and another namespace. Next: `kubectl get "
        "endpoints` of that Service.",
        "set the selector of Service {instance|NAME} to {labels|the labels of its pods}",
        (Needs.TOPOLOGY,),
        "every Kubernetes",
        "Kubernetes documentation",
    ),
    Entry(
        "PD222",
        "service-target-port-closed",
        Severity.ERROR,
        "Service {instance|NAME} sends to port {observed|A} of its pods, which listen on {expected|B}",
        "A Service passes connections on to the targetPort of the pods, and Kubernetes does not check that anybody "
        "listens there: declaring a containerPort opens nothing. Connections to that port are refused while the "
        "pods are ready. A targetPort by name must be the name of a declared containerPort. Next: --port of the "
        "engine or router, beside the targetPort.",
        "set the targetPort of Service {instance|NAME} to {port}",
        (Needs.TOPOLOGY,),
        "every Kubernetes",
        "Kubernetes documentation",
    ),
    Entry(
        "PD223",
        "router-dials-closed-port",
        Severity.ERROR,
        "the router calls {url|a URL}, but {why|nobody listens on that port}",
        "The port in a --prefill or --decode URL is the one that the engine's HTTP server listens on, or that its "
        "Service publishes (`port`, not `targetPort`). At any other port the connection is refused, the router "
        "retries for up to 1800 s, and serves without that worker or not at all. Next: the router's URL beside the "
        "Service and the engine's --port.",
        "give the router {right|http://HOST:PORT} instead",
        (Needs.TOPOLOGY,),
        "every router",
        "Kubernetes documentation; measured with sglang-router 0.3.2",
    ),
    Entry(
        "PD224",
        "listens-on-loopback",
        Severity.ERROR,
        "{instance|a server} listens only on {observed|127.0.0.1}, to which {caller|its Service} cannot connect",
        "SGLang listens on 127.0.0.1 unless it is given --host, and so does the bootstrap server of a prefill. In a "
        "pod or a container that is the loopback of this pod alone: a Service, a router in another pod and the "
        "kubelet's httpGet and tcpSocket probes come to the pod's address, where the connection is refused. The "
        "engine itself is fine and its log shows nothing. An exec probe, or one with `host: 127.0.0.1` in a pod with "
        "hostNetwork, does reach it. Next: --host on the engine's command line.",
        "start {instance} with --host {host}",
        (Needs.TOPOLOGY,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; Kubernetes documentation",
        reports=cited("sglang#11747"),
    ),
    Entry(
        "PD225",
        "cannot-listen",
        Severity.ERROR,
        "{instance|a server} cannot listen on {observed|its address}",
        'A server listens on an address of its own machine, at a port that its user may open. "Cannot assign '
        "requested address\" says that no interface has the address of --host: it is another machine's, a Service's, "
        'or one that the interface does not have yet. "Permission denied" says that the port is below 1024 or '
        "reserved. The process ends at once, and whatever calls it finds nobody there. Next: --host and --port of "
        "that process, beside `ip -br address` on its machine.",
        "{fix|give --host an address that `ip -br address` lists on that machine}",
        (Needs.LOG,),
        "every server",
        "measured with sglang-router 0.3.2, smg 1.13.0 and pdctl",
    ),
    Entry(
        "PD226",
        "router-dials-unknown-host",
        Severity.ERROR,
        "the router calls {url|a URL}, but {why|nothing has that name}",
        "In a cluster a host is the name of a Service (svc, svc.ns, svc.ns.svc.cluster.local), or of a pod of a "
        "StatefulSet or LeaderWorkerSet under its headless Service (pod.svc); in a compose file it is a service, a "
        "container_name or an alias. A name that is not there does not resolve: the router retries for up to 1800 s, "
        "and serves without that worker or not at all. Meanwhile an engine runs that the router never calls. In start "
        "scripts it is an address on which no engine listens, while one listens on another that no router calls. Next: "
        "the router's URLs beside the names of the Services, or beside each --host.",
        "{fix|give the router the name of a Service}",
        (Needs.TOPOLOGY,),
        "every router",
        "Kubernetes and Compose documentation; measured with sglang-router 0.3.2",
    ),
)
