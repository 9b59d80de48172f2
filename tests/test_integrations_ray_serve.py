"""Ray Serve: tritonclient, as it is, gets veiled scores from a user's deployment."""

import contextlib
import json
import socket
import urllib.error
import urllib.request
import warnings

import numpy as np
import pytest
import tritonclient.http as triton
from sklearn.datasets import load_iris

from doc_pages import run_page

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what Ray imports
    from ray import serve

    from scoreveil.integrations.ray_serve import read, veiled_application

from scoreveil.inference_protocol.errors import ApiError
from scoreveil.shapes import MultiLabel

# warnings of Ray's own threads come at times of their choosing
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ray]
X = load_iris().data
TENSOR = {"name": "x", "datatype": "FP64", "shape": [1, 4], "data": X[0].tolist()}


@pytest.fixture(scope="module")
def served(ray_cluster, tmp_path_factory):
    """The application of the page, and one of a model that fails beside it; where they are, and the page's model."""

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Talkative:
        def predict_proba(self, x):
            raise ValueError("raw: 0.123456")

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Tags:
        def predict_proba(self, x):
            yes = 1 / (1 + np.exp(-x[:, :2]))
            return [np.column_stack([1 - each, each]) for each in yes.T]

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        with contextlib.chdir(tmp_path_factory.mktemp("page")):  # where it writes its secret file
            model = run_page("ray-serve")["model"]
        light = {"ray_actor_options": {"num_cpus": 0.1}}
        talkative = veiled_application(Talkative.bind(), name="iris", epsilon=2.0, endpoint=light)
        serve.run(talkative, name="talkative", route_prefix="/talkative")
        tags = veiled_application(Tags.bind(), name="tags", epsilon=0.5, endpoint=light, shape=MultiLabel())
        serve.run(tags, name="tags", route_prefix="/tags")
        yield f"127.0.0.1:{port}", model
        serve.shutdown()


def ask(client, binary_in, binary_out):
    given = triton.InferInput("x", X.shape, "FP64")
    given.set_data_from_numpy(X, binary_data=binary_in)
    wanted = [triton.InferRequestedOutput("scores", binary_data=binary_out)]
    return client.infer("iris", [given], outputs=wanted).as_numpy("scores")


def test_several_labels_are_a_column_each(served):
    url, _ = served
    x = np.random.default_rng(0).normal(size=(30, 4))
    given = triton.InferInput("x", x.shape, "FP64")
    given.set_data_from_numpy(x, binary_data=True)
    with triton.InferenceServerClient(f"{url}/tags") as client:
        z = client.infer("tags", [given]).as_numpy("scores")
    assert np.array_equal(z >= 0.5, x[:, :2] >= 0)


def test_tritonclient_gets_veiled_scores(served):
    address, model = served
    raw = model.predict_proba(X)
    with triton.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("iris")
        assert client.get_model_metadata("iris")["outputs"][0]["name"] == "scores"
        answers = [ask(client, one, other) for one in (True, False) for other in (True, False)]
    for z in answers:
        assert np.array_equal(z.argmax(axis=1), raw.argmax(axis=1))
        assert np.allclose(z.sum(axis=1), 1)
        assert np.allclose(z, answers[0]), "sticky, however it is asked"
    assert np.mean(np.any(np.abs(answers[0] - raw) > 1e-6, axis=1)) > 0.9


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v2/models/other/infer", {"inputs": []}, (404, "This path is not served")),
        ("/predict_proba", {"inputs": []}, (404, "This path is not served")),
        ("/v2/models/iris/infer", {"inputs": []}, (400, "inputs: Expected `array` of length >= 1")),
        ("/v2/models/iris/infer", {"inputs": [TENSOR], "outputs": [{"name": "logits"}]}, (400, "Output 'logits'")),
        ("/talkative/v2/models/iris/infer", {"inputs": [TENSOR]}, (502, "The model gave no answer")),
        ("/v2/models/iris/infer", {"inputs": [{**TENSOR, "shape": [4, 1]}]}, (502, "The model gave no answer")),
    ],
)
def test_what_is_refused_says_why_and_quotes_no_score(served, path, body, expected):
    request = urllib.request.Request(f"http://{served[0]}{path}", json.dumps(body).encode())
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    said = refused.value.read().decode()
    status, words = expected
    assert refused.value.code == status
    assert json.loads(said)["error"].startswith(words)
    assert "0.123456" not in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3]}, "has 3 values; its shape .* says 4"),
        ({"datatype": "BYTES", "shape": [1], "data": ["a"]}, "one input tensor of numbers"),
        ({"datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 400}}, "bytes from 0 to 0"),
        ({"datatype": "FP32", "shape": [0, 2], "data": []}, "has no rows"),
        ({"datatype": "FP32", "shape": [-1, 2], "parameters": {"binary_data_size": -8}}, "Expected `int` >= 0"),
        ({"datatype": "FP32", "shape": [1, 2]}, "neither data nor binary_data_size"),
    ],
)
def test_malformed_tensors_are_refused(given, words):
    with pytest.raises(ApiError, match=words):
        read(json.dumps({"inputs": [{"name": "x", **given}]}).encode(), None)


def test_what_no_veil_takes_is_refused_before_any_replica():
    with pytest.raises(ValueError, match="epsilon"):
        veiled_application(None, name="m", epsilon=0.0)
