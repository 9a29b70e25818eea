"""Every flag of sglang-router 0.3.2, of smg 1.13.0 and of our own router; `=` and `=*` as with SGLang's."""

from __future__ import annotations

from functools import cache

_SHARED = """
api-key= assignment-mode= backend= balance-abs-threshold= balance-rel-threshold= bucket-adjust-interval-secs=
ca-cert-paths=* cache-threshold= cb-failure-threshold= cb-success-threshold= cb-timeout-duration-secs=
cb-window-duration-secs= chat-template= client-cert-path= client-key-path= control-plane-api-keys=*
control-plane-audit-enabled cors-allowed-origins=* decode-policy= decode-selector=* decode= disable-circuit-breaker
disable-health-check disable-retries dp-aware enable-igw enable-trace eviction-interval-secs= health-check-endpoint=
health-check-interval-secs= health-check-timeout-secs= health-failure-threshold= health-success-threshold=
history-backend= host= jwt-audience= jwt-issuer= jwt-jwks-uri= jwt-role-mapping=* log-dir= log-level=
max-concurrent-requests= max-idle-secs= max-payload-size= max-tree-size= mcp-config-path= model-path=
oracle-connect-descriptor= oracle-password= oracle-pool-max= oracle-pool-min= oracle-pool-timeout-secs=
oracle-tns-alias= oracle-username= oracle-wallet-path= otlp-traces-endpoint= pd-disaggregation policy= port=
postgres-db-url= postgres-pool-max= prefill-policy= prefill-selector=* prefill=* prometheus-duration-buckets=*
prometheus-host= prometheus-port= queue-size= queue-timeout-secs= rate-limit-tokens-per-second= reasoning-parser=
redis-pool-max= redis-retention-days= redis-url= request-id-headers=* request-timeout-secs= retry-backoff-multiplier=
retry-initial-backoff-ms= retry-jitter-factor= retry-max-backoff-ms= retry-max-retries= selector=* service-discovery
service-discovery-namespace= service-discovery-port= shutdown-grace-period-secs= tls-cert-path= tls-key-path=
tokenizer-cache-enable-l0 tokenizer-cache-enable-l1 tokenizer-cache-l0-max-entries= tokenizer-cache-l1-max-memory=
tokenizer-path= tool-call-parser= worker-startup-check-interval= worker-startup-timeout-secs= worker-urls=*
"""
_SMG = """
balance-token-usage-threshold= block-size= cache-boundaries= cache-index= cache-ttl-secs= disable-load-monitoring
disable-tokenizer-autoload disable-worker-overload-protection discovery-check-interval-secs= discovery-file=
discovery-provider= dp-minimum-tokens-scheduler enable-mesh enable-rl enable-wasm encode-policy= encode-selector=*
encode=* epd-disaggregation header-read-timeout-secs= health-check-port= history-memory-max-items=
history-memory-max-responses= history-memory-retention-secs= idle-connection-timeout-secs= jemalloc-prof-dir=
job-queue-capacity= job-queue-concurrency= kv-connector-annotation= kv-engine-id-annotation= kv-index=
least-load-default-throughput= least-load-kv-pressure-weight= least-load-max-waiting-requests=
least-load-mean-prefill-tokens= load-monitor-interval= log-json log-mm-timing max-background-responses=
max-buffered-request-bytes= mesh-advertise-host= mesh-host= mesh-peer-urls=* mesh-port= mesh-server-name=
mesh-tls-ca-cert= mesh-tls-cert= mesh-tls-key= mm-allow-private-media-hosts mm-allowed-media-domains=
mm-per-request-image-limit= mm-pixel-cache-mb= mm-pixel-rdma mm-processing= model-alias= model-id-from=
multimodal-max-inflight-bytes= multimodal-shm-min-bytes= multimodal-tensor-transport= no-remove-unhealthy-workers
no-worker-auto-recovery oracle-external-auth overlap-decay= overload-token-usage-threshold= parser=
pd-admission-wait-secs= postgres-op-timeout-secs= power-of-two-load-metric= prefill-max-inflight-requests-per-worker=
prefill-queue-size= prefill-queue-timeout-secs= prefix-hash-balance-abs-threshold= prefix-hash-load-factor=
prefix-token-count= priority-scheduler-config= priority-scheduler-default-max-class= priority-scheduler-enabled
priority-scheduler-tenant-metric-top-n= rdma-listen-ip= rdma-slot-ttl-s= redis-op-timeout-secs=
remove-unhealthy-workers rl-control-timeout-secs= rl-fanout-concurrency= router-selector=* routing-key-headers=*
routing-key-override schema-config= selection-accounting-ttl-ms= selection-policy= selection-temperature=
sse-keepalive-secs= storage-context-headers=* storage-hook-wasm-path= stream-body-stall-timeout-secs= tenant-api-key=
tenant-header-name= tenant-rate-limit-config= tenant-rate-limit-enabled tokenizer-cache-l0-max-memory=
trust-tenant-header upstream-http2 upstream-pool-idle-timeout-secs= worker-auto-recovery worker-overload-protection
worker-overload-shed worker-overload-token-usage= worker-overload-waiting-requests= worker-stale-secs=
worker-stall-secs= worker-startup-delay= worker-warmup-blocks= worker-warmup-divert-every= worker-warmup-secs=
worker-warmup-share= worker-warmup-thin-ratio= worker-wedge-secs= zmq-engine-count=
"""
_PDCTL = """
admin-api-key-file= admin-api-key= allow-unauthenticated-workers api-key-file= api-key= balance-abs-threshold=
balance-rel-threshold= bootstrap-check= cache-threshold= cb-failure-threshold= cb-timeout-duration-secs= cb-timeout=
connect-timeout= decode-policy= decode=* deployment-secret-file= first-byte-timeout= health-check-endpoint=
health-check-interval-secs= health-check-timeout-secs= health-failure-threshold= health-interval= health-path=
health-success-threshold= health-timeout= host= idle-timeout= ledger-size= liveness-interval= log-level=
max-connections= max-payload-memory= max-payload-size= pd-disaggregation policy= port= prefill-policy=
prefill-timeout= prefill=* probe-interval= probe-timeout= read-timeout= rehearse= request-timeout-secs=
request-timeout= retries= retry-backoff= shutdown-grace-period-secs= shutdown-grace= upstream-idle-timeout=
"""
_FLAGS = {
    "sglang-router": (_SHARED, "mini-lb"),
    "mini-lb": (_SHARED, "mini-lb"),
    "smg": (_SHARED, _SMG),
    "pdctl": (_PDCTL,),
}
RELEASES = {
    "sglang-router": "sglang-router 0.3.2",
    "mini-lb": "sglang-router 0.3.2",
    "smg": "smg 1.13.0",
    "pdctl": "pdctl's router",
}


@cache
def arguments(kind: str) -> dict[str, str]:
    """Name without dashes → what it takes: "" nothing, "=" one value, "=*" one or more. `kind` as in `router.kind`."""
    words = " ".join(_FLAGS[kind]).split()
    return {name: equals + more for name, equals, more in (word.partition("=") for word in words)}


def near(name: str, kind: str) -> str:
    """The known flag a person most likely had in mind, "" for none."""
    from difflib import get_close_matches  # late: only a mistake needs it

    return next(iter(get_close_matches(name, arguments(kind), 1, 0.75)), "")
