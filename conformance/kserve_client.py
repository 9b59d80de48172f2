"""The kserve client against a gateway, as it is: liveness, readiness, and one request. Prints the scores as JSON.

python kserve_client.py URL FOLDER
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def main(url: str, folder: Path) -> None:
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
    print(json.dumps(scores.tolist()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
