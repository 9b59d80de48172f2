"""What the gateway is measured against: the same server (granian, ASGI), passing bytes both ways through aiohttp."""

import os
from typing import Any

import aiohttp

UPSTREAM = os.environ.get("PASSTHROUGH_UPSTREAM", "")
PASSED = (b"content-type", b"inference-header-content-length")
session: aiohttp.ClientSession | None = None


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global session
    if scope["type"] != "http":
        return
    if session is None:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100), auto_decompress=False)
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    headers = {name.decode(): value.decode() for name, value in scope["headers"] if name in PASSED}
    async with session.request(scope["method"], UPSTREAM + scope["path"], data=body, headers=headers) as answer:
        content = await answer.read()
        kept = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    kept = [(name, value) for name, value in kept if name in (*PASSED, b"content-length")]
    await send({"type": "http.response.start", "status": answer.status, "headers": kept})
    await send({"type": "http.response.body", "body": content})
