"""The model behind gateway and pass-through: the demo's digits, on the same stack, with no veil."""

from typing import Any

from scoreveil.demo import digits_model
from scoreveil.inference_protocol import messages

predict, features = digits_model()
ABOUT = {"model_name": "digits", "model_version": "1"}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    answer, headers = b"{}", []
    if scope["path"].endswith("/infer"):
        request = messages.read_request(body, dict(scope["headers"]).get(messages.HEADER_LENGTH))
        scores = predict(request.inputs[0].data)
        answer, length = messages.write_response(ABOUT, {"scores": scores}, request.wanted(["scores"]))
        headers = [(messages.HEADER_LENGTH, b"%d" % length)] if length else []
    headers.append((b"content-length", b"%d" % len(answer)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
