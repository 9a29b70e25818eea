"""httpx for plain HTTP: each client of its own default reads the certificates of the world, 20 ms of a core."""

from __future__ import annotations

import functools

import httpx

get = functools.partial(httpx.get, verify=False)
post = functools.partial(httpx.post, verify=False)
delete = functools.partial(httpx.delete, verify=False)
stream = functools.partial(httpx.stream, verify=False)
Client = functools.partial(httpx.Client, verify=False)
AsyncClient = functools.partial(httpx.AsyncClient, verify=False)
