"""The kserve clients against a gateway, as they are: liveness, readiness, and one request over HTTP and over gRPC.
Prints the scores as JSON.

python kserve_client.py URL GRPC_ADDRESS FOLDER
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def main(url: str, address: str, folder: Path) -> None:
    x = np.load(folder / "x.npy")
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "iris")
    for binary in (False, True):
        given = InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        answer = await client.infer(url, InferRequest("iris", [given]), model_name="iris")
        scores = answer.outputs[0].as_numpy()
    other = InferenceGRPCClient(address)
    assert await other.is_server_live()
    assert await other.is_server_ready()
    assert await other.is_model_ready("iris")
    for binary in (False, True):
        given = InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        answer = await other.infer(InferRequest("iris", [given]))
        assert np.array_equal(answer.outputs[0].as_numpy(), scores), "gRPC gives what HTTP gives"
    await other.close()
    print(json.dumps(scores.tolist()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
