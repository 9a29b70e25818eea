"""Two roles, their queues, pools and KV managers in one thread and virtual time, under injected faults.

Real: schedulers, roles, resources, KV managers, frames and codec, bootstrap table. Simulated: sockets and HTTP (`net`),
the copying of bytes (`transport`), the model (`model`), clocks. `world` drives them, `ledger` says what must hold.
"""
