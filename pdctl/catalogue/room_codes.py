"""What ends one room: the causes trace-room names."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD701",
        "wrong-prefill-contacted",
        Severity.ERROR,
        "{prefill|one prefill} got the request, but decode sent its page list to {contacted|another}",
        "The two legs of the room went to different prefills. The one with the request waits in Bootstrapping for a "
        "decode that never comes; the other one keeps a room it has no request for; decode waits for KV cache until "
        "its timeout. The reason is the bootstrap address the request carried: a null port replaced by decode's own "
        "(PD201), a wrong or swapped port (PD202, PD203), a shared port (PD204), or a Service name in front of "
        "several prefills (PD216). Nothing is wrong with the engines. Next: the router's port for the prefill that "
        "got the request.",
        "start the router with the port of every prefill: --prefill {url} {port}",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; observed with 0.5.8, 0.5.18 and 0.5.23",
        reports=cited("sglang#5704 sglang#8644"),
    ),
    Entry(
        "PD702",
        "decode-never-announced",
        Severity.ERROR,
        "{prefill|prefill} waited for a decode that never sent its page list: {observed|it timed out}",
        "Prefill has the request and computes nothing before decode has announced its pages. Decode got the room but "
        "never came to announce it: its KV pool or slots were full (PD501), it could not fetch the prefill's ranks "
        "(PD205, PD209), or its announcement went to an address nobody listens on (PD210). Next: the room in decode's "
        "log: in the prealloc queue, or an error.",
        "pdctl doctor --prefill {prefill} --decode {decode}",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#10110 sglang#8177 sglang#9266 sglang#8744 sglang#10204"),
    ),
    Entry(
        "PD703",
        "leg-missing",
        Severity.ERROR,
        "{missing|one side} never got the request of this room; the other side waited {observed|for its timeout}",
        "A router sends one room to two servers. Here one of them has no trace of it: the leg was not sent (an open "
        "breaker, a router that gave up, a client that talked to one engine directly) or was refused before it was "
        "logged. The side that has it can only time out. Until then the room holds a slot, and a decode with all its "
        "slots held answers nobody, although its health check says 200. Next: the router's log at that time, then "
        "its breakers.",
        "send requests to the router, never to an engine",
        (Needs.LOG, Needs.ENDPOINT),
        "every SGLang and every router",
        "sglang 0.5.3 to 0.5.23 source; observed",
        reports=cited("sglang#31206 sglang#8557 aibrix#1351 sglang#12355"),
    ),
    Entry(
        "PD704",
        "decode-died",
        Severity.ERROR,
        "{decode|decode} died {when|while it had the room}",
        "The decode process ended, crashed or was killed before it finished. Prefill reports a failed transfer "
        '("Decode instance could be dead") or nothing at all, and the client gets a cut connection or a 502. '
        "Other rooms of this decode ended at the same moment. Next: the last lines of decode's log, then the "
        "kernel's (OOM) at that time.",
        "pdctl logs {decode} --tail 50",
        (Needs.LOG,),
        "every SGLang",
        "observed",
    ),
    Entry(
        "PD705",
        "prefill-died",
        Severity.ERROR,
        "{prefill|prefill} died before the KV cache was handed over",
        'The prefill process ended, crashed or was killed. Decode notices by heartbeats after about 10 s ("Lost '
        'connection with prefill instance"), or at its 300 s timeout when it had never contacted it. In some releases '
        "decode itself stalled while sending to a dead prefill, and its health check failed too. Next: the last lines "
        "of prefill's log, then the kernel's (OOM) at that time.",
        "pdctl logs {prefill} --tail 50",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; observed",
        reports=cited("sglang#12779 sglang#31144 sglang#16903 sglang#13657"),
    ),
    Entry(
        "PD706",
        "client-abort",
        Severity.INFO,
        "{what|the client went away} after {observed|some time}",
        'The connection to the client closed and both legs were aborted. "Aborted by AbortReq" is what it leaves in '
        "the logs; the same line is also the echo of a timeout or of a failure on the other side, so look at the "
        "time: at a client's own timeout it was the client, at 300 s it was a room that hung. Its room counts as "
        "aborted, not as failed. POST /abort_request at an engine does the same on behalf of whoever sends it. Next: "
        "the client's timeout.",
        "raise the timeout of the client above the slowest answer",
        (Needs.LOG,),
        "every SGLang and every router",
        "observed",
        reports=cited("sglang#8177 sglang#6258 smg#2114"),
    ),
    Entry(
        "PD707",
        "room-reused",
        Severity.ERROR,
        "room {room|R} was used for more than one request",
        "Tables on both sides are keyed by the room. A second request with the same number meets the remains of the "
        'first: KeyError or ValueError in the scheduler, "Duplicate or cancelled bootstrap room", or one request\'s '
        "KV cache in the other's answer. It comes from load balancers that let the client choose the room, retries "
        "that keep it, a resend after a dropped connection (smg 1.13.0), and n > 1 (PD319). Next: who chose the room.",
        "draw a fresh random room for every attempt",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; measured with smg 1.13.0; observed",
        reports=cited("sglang#40125 kthena#1423 kthena#1424"),
    ),
    Entry(
        "PD708",
        "transfer-never-completed",
        Severity.ERROR,
        "{prefill|prefill} and {decode|decode} met, but the KV cache never arrived whole: {observed|the end is "
        "missing}",
        "Both sides had the room and prefill knew decode's pages; what is missing is the end of the transfer. Either "
        "prefill failed and decode was not told (NIXL before 0.5.20), or chunks were lost, or with NIXL from 0.5.6 to "
        "0.5.16 the deadline was checked before the completion notifications. Next: transfer errors in the prefill's "
        "log for this room, then for any room before it.",
        "grep -nE 'transport error|Failed to send kv chunk|NIXL_ERR' {file}",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#36033 sglang#36612 sglang#32267 sglang#27730"),
    ),
    Entry(
        "PD709",
        "scheduler-crashed",
        Severity.ERROR,
        "a scheduler of {instance|an engine} crashed: {observed|see its first traceback}",
        "An exception escaped the scheduler's loop. SGLang ends the whole instance then, and every room on it with "
        "it. Known reasons on decode are a page size, dtype or stage mismatch seen on the first request, an answer it "
        "does not understand, and a null bootstrap host. Next: the first traceback, not the last.",
        "grep -nE -m1 -A100 'Traceback|killed by SIG' {file}",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.8 to 0.5.23 source; observed",
        reports=cited("sglang#14439 sglang#14474"),
    ),
    Entry(
        "PD710",
        "bootstrap-thread-died",
        Severity.ERROR,
        "{instance|prefill}: the bootstrap thread of a rank died, and every later room on it hangs",
        "A NIXL prefill rank reads announcements in one thread, and a frame it does not expect ends that thread while "
        "the process lives on. From 0.5.13 to 0.5.15 decode's own abort message is such a frame: one client that "
        'leaves, and this rank accepts no room any more. From 0.5.21 on it says so ("prefill bootstrap_thread died on '
        "engine_rank\"); older releases leave only the traceback of a thread. Where decode's abort was that frame, "
        'update SGLang to 0.5.16 or later; a bug of pdctl\'s own engine leaves "KV manager thread died". Next: the '
        'first "Foreign traffic" or assertion in the prefill\'s log.',
        "restart {instance}",
        (Needs.LOG,),
        "NIXL, 0.5.3 to 0.5.23; common from 0.5.13 to 0.5.15",
        "sglang 0.5.12 to 0.5.23 source (disaggregation/nixl/conn.py)",
        reports=cited("sglang#30301 sglang#30352 sglang#30685"),
    ),
    Entry(
        "PD711",
        "context-corruption",
        Severity.ERROR,
        "{instance|decode} received the KV metadata of room {observed|X} for this room",
        "Decode compares the room number in the metadata row it received with its own and aborts when they differ: "
        '"Context corruption detected". The row was overwritten by another room: slots or pages were reused while '
        "an older transfer was still writing, or the two sides index them differently. Releases before 0.5.9 do not "
        "compare, so there the answer is simply wrong. Next: aborted or timed-out rooms just before this one.",
        "update both roles to SGLang 0.5.21 or newer",
        (Needs.LOG,),
        "compared since 0.5.9; pages are kept until the transfer has drained since 0.5.21, and in 0.5.19 and 0.5.20 if "
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE is set; whether a later release can still have it is unknown",
        "sglang 0.5.8 to 0.5.23 source (disaggregation/decode.py)",
        reports=cited("sglang#23020 sglang#22716 sglang#17259 sglang#24527 sglang#35049"),
    ),
    Entry(
        "PD712",
        "room-id-missing",
        Severity.ERROR,
        "{instance|an engine} got a request without a bootstrap room",
        "A prefill or decode server answers only requests that a router has given a room, a host and a port. A "
        'request sent to it directly is refused ("Disaggregated request received without bootstrap room id"), and '
        "from 0.5.4 on it can end the DP controller with an assertion. Some client or probe uses the engine's "
        "address. Next: who sent it: the access log has the address.",
        "send requests to the router's address, not to {instance}",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; observed",
    ),
    Entry(
        "PD713",
        "prefill-refused",
        Severity.ERROR,
        "{prefill|prefill} refused the request: it answered {observed|with an error of its own}",
        "Prefill answered with an error of its own, and the room never began there. Decode may still wait for it, "
        "up to its timeout, unless the router cancels the other leg. 400 means the request (too long, malformed), "
        "500 and 503 the server. Next: prefill's log at that moment; for 400 the prompt's length.",
        "pdctl logs {prefill} --grep {rid}",
        (Needs.LOG,),
        "every SGLang",
        "measured with sglang-router 0.3.2 and smg 1.13.0; observed",
        reports=cited("sglang#9726 sglang#29017 aibrix#2289 llm-d#2433"),
    ),
    Entry(
        "PD714",
        "decode-refused",
        Severity.ERROR,
        "{decode|decode} refused the request: it answered {observed|with an error of its own}",
        "Decode answered with an error of its own; prefill has the room and waits for an announcement that will not "
        "come, until its bootstrap timeout. Different limits on the two sides are the usual reason (PD307, PD505). "
        "Next: decode's log at that moment.",
        "pdctl logs {decode} --grep {rid}",
        (Needs.LOG,),
        "every SGLang",
        "measured with sglang-router 0.3.2 and smg 1.13.0; observed",
        reports=cited("sglang#23380"),
    ),
    Entry(
        "PD715",
        "router-retried",
        Severity.INFO,
        "the router tried again with another room: {observed|one attempt failed}",
        "After a failed attempt sglang-router and smg try another pair with a new room, five times by default. The "
        "client sees one request, the logs show several rooms, and each has its own cause. A retry hides a broken "
        "pair: 20 of 20 requests succeeded in a test with one of two prefills dead. Next: the first attempt's room.",
        "pdctl trace-room {other_room}",
        (Needs.LOG,),
        "sglang-router 0.3.2, smg 1.13.0",
        "measured with sglang-router 0.3.2 and smg 1.13.0",
    ),
    Entry(
        "PD716",
        "room-zero",
        Severity.INFO,
        "room 0 is SGLang's own warm-up: no KV cache moves",
        "At start, and for /health_generate, an engine sends itself a request with host 2.2.2.2 and room 0 (with DP "
        "ranks also a fixed series of rooms) and uses a fake transfer. It says nothing about any peer. A real "
        'request must never use room 0: from 0.5.9 decode takes a zero in the metadata row for "not written yet" '
        "and waits. Next: nothing, unless a client chose 0.",
        "pdctl rooms",
        (Needs.LOG,),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source; observed",
    ),
    Entry(
        "PD717",
        "peer-unresponsive",
        Severity.ERROR,
        "{instance|a server} hung or was cut off while it had the room: {observed|it did not answer}",
        "The process was there before and after, and in between it did nothing or nothing reached it: it was stopped "
        "(SIGSTOP, a debugger, a frozen container), its host gave it no CPU time, or the network between the two was "
        'down. The other side says so by heartbeats ("Lost connection with prefill instance") and health checks '
        "without an answer; messages to it are read late, all at once. Its log tells the two apart: it pauses if the "
        "process did, and goes on if only the network was down. When a stopped process continues, its own timeouts "
        "fire far past their limits, and what it then says of others means nothing. Next: the host's load and kernel "
        "log at that time, then the network between the two hosts.",
        "ps -eo pid,stat,etime,args | grep -E '^ *[0-9]+ +T'   # on the host of {instance}: a process in state T is "
        "stopped, kill -CONT PID continues it",
        (Needs.LOG,),
        "every SGLang",
        "observed",
    ),
    Entry(
        "PD718",
        "request-refused",
        Severity.INFO,
        "the request itself was refused: {observed|it was answered with 4xx}",
        "An engine answered 4xx before any KV cache moved, and the router passed its answer on. 400 means that the "
        "prompt is longer than the context or the pool, or that a field is not valid; 401 that the key is missing. "
        "Another pair would say the same, so the router does not try one, and no instance failed. Its room counts as "
        "refused, not as failed. Next: the body of the answer, which names the field or the limit.",
        "send a request that the engine accepts: the body of its answer says what is wrong with this one",
        (Needs.LOG,),
        "pdctl's router",
        "pdctl router source; observed",
    ),
    Entry(
        "PD719",
        "router-deadline",
        Severity.ERROR,
        "the router gave up after {observed|its limit} while {decode|the decode} was still writing the answer",
        "The KV cache had arrived and decode was writing tokens when the router's own time limit ran out: it cut the "
        "answer off, and both engines aborted the request. Nothing had failed. Either the limit is shorter than a "
        "long answer takes, or decode is slower than it was when the limit was chosen: more rooms at once, a "
        "preempted batch, a busy host. Next: the tokens it had written by then, against the seconds it had.",
        "raise {flag|--request-timeout} of the router above the slowest answer, or ask for fewer tokens",
        (Needs.LOG,),
        "pdctl's router",
        "pdctl router source; observed",
    ),
    Entry(
        "PD720",
        "router-died",
        Severity.ERROR,
        "{router|the router} died while it had the room",
        "The router's process ended, crashed or was killed. Every client's connection breaks at that moment, and the "
        "engines abort the requests they had from it, as for a client that left; the engines themselves did not fail. "
        "Until the router is back nobody is served, however healthy the engines are. Next: the last lines of its log, "
        "then the kernel's (OOM) at that time.",
        "pdctl logs {router} --tail 50",
        (Needs.LOG,),
        "every router",
        "observed",
    ),
)
