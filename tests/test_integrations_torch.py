"""The torch module: veiled probabilities where the module's answer would be."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch

from doc_pages import run_page
from raw_scores import names_that_answer_with
from scoreveil.integrations.torch import VeiledModule
from scoreveil.shapes import VECTORS, Binary, MultiLabel, PerPosition

pytestmark = pytest.mark.slow

SECRET = b"a secret of the tests"
RECORDS = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    return torch.nn.Sequential(*layers).eval()


def test_the_label_stays_and_the_rest_is_veiled():
    bare = torch.softmax(network()(RECORDS), dim=1)
    z = VeiledModule(network(), 2.0)(RECORDS)
    assert z.shape == bare.shape
    assert z.dtype == bare.dtype
    assert not z.requires_grad
    assert torch.equal(z.argmax(1), bare.argmax(1))
    assert torch.all(torch.any((z - bare).abs() > 1e-6, dim=1))
    assert torch.allclose(z.sum(1), torch.ones(len(z)), atol=1e-6)


def test_probabilities_and_logits_are_told_apart():
    ends_in_softmax = torch.nn.Sequential(network(), torch.nn.Softmax(dim=1)).eval()
    from_logits = VeiledModule(network(), 2.0, secret=SECRET)(RECORDS)
    from_probabilities = VeiledModule(ends_in_softmax, 2.0, outputs="probabilities", secret=SECRET)(RECORDS)
    assert torch.equal(from_logits, from_probabilities)
    with pytest.raises(ValueError, match="got 'scores'"):
        VeiledModule(network(), 2.0, outputs="scores")
    with pytest.raises(ValueError, match="Row 0"):
        VeiledModule(network(), 2.0, outputs="probabilities")(RECORDS)


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
def test_yes_and_no_go_through_the_sigmoid(outputs, secret):
    last = torch.nn.Sigmoid() if outputs == "probabilities" else torch.nn.Identity()
    module = torch.nn.Sequential(network(), last).eval()
    raw = torch.sigmoid(network()(RECORDS))
    z = VeiledModule(module, 0.5, outputs=outputs, shape=MultiLabel(), secret=secret)(RECORDS)
    assert z.shape == raw.shape
    assert torch.equal(z >= 0.5, raw >= 0.5)
    assert (z - raw).abs().max() > 0.01
    first = torch.nn.Sequential(module, Column()).eval()
    z = VeiledModule(first, 0.5, outputs=outputs, shape=Binary(threshold=0.3), secret=secret)(RECORDS)
    assert z.shape == (40,)
    assert torch.equal(z >= 0.3, raw[:, 0] >= 0.3)


# Probabilities where logits are expected


class Ending(torch.nn.Module):
    """A network whose last step is not a layer."""

    def __init__(self, last):
        super().__init__()
        self.network, self.last = network(), last

    def forward(self, x):
        return self.last(self.network(x))


class WithLayer(torch.nn.Module):
    """A network of one's own, with a last layer that is used or not."""

    def __init__(self, last, is_used=True):
        super().__init__()
        self.network, self.last, self.is_used = network(), last, is_used

    def forward(self, x):
        return self.last(self.network(x)) if self.is_used else self.network(x)


@pytest.mark.parametrize("last", [torch.nn.Softmax(dim=1), torch.nn.Sigmoid()], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "made",
    [
        lambda last: torch.nn.Sequential(network(), last),
        lambda last: torch.nn.Sequential(network(), torch.nn.Sequential(torch.nn.Identity(), last)),
        WithLayer,
    ],
    ids=["sequential", "sequential within", "own"],
)
@pytest.mark.parametrize("shape", [VECTORS, MultiLabel()], ids=str)
def test_a_module_whose_last_layer_gives_probabilities_is_refused_as_it_is_wrapped(made, last, shape):
    module = made(last).eval()
    kind = type(last).__name__
    with pytest.raises(ValueError, match=rf'last layer of the module is a {kind}: .*Say outputs="prob') as caught:
        VeiledModule(module, 0.5, shape=shape)
    assert ("MultiLabel()" in str(caught.value)) == (kind == "Sigmoid" and shape == VECTORS)
    if kind == "Softmax" or shape != VECTORS:
        z = VeiledModule(module, 0.5, outputs="probabilities", shape=shape)(RECORDS)
        raw = module(RECORDS)
        assert torch.equal(z.argmax(1), raw.argmax(1)) if shape == VECTORS else torch.equal(z >= 0.5, raw >= 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("secret", [None, SECRET])
def test_probabilities_are_refused_at_the_first_answer(dtype, secret):
    module = Ending(lambda z: torch.softmax(z, dim=1).to(dtype)).eval()
    with pytest.raises(ValueError, match=r'The module gives probabilities already, and not logits\. Say outputs="p'):
        VeiledModule(module, 2.0, secret=secret)(RECORDS)
    places = Ending(lambda z: torch.softmax(z, dim=1).to(dtype)[:, None]).eval()
    with pytest.raises(ValueError, match='Say outputs="probabilities"'):
        VeiledModule(places, 0.5, shape=PerPosition(), secret=secret)(RECORDS)


def test_even_one_row_of_probabilities_is_refused():
    module = Ending(lambda z: torch.softmax(z, dim=-1)).eval()
    for records in (RECORDS[:1], RECORDS[:2]):
        with pytest.raises(ValueError, match='Say outputs="probabilities"'):
            VeiledModule(module, 2.0)(records)
    vector = Ending(lambda z: torch.softmax(z, dim=-1)[0]).eval()
    with pytest.raises(ValueError, match='Say outputs="probabilities"'):
        VeiledModule(vector, 2.0)(RECORDS[:1])


@pytest.mark.parametrize(("shape", "taken"), [(MultiLabel(), slice(None)), (Binary(), 0)], ids=str)
def test_probabilities_of_yes_are_refused_once_there_are_enough(shape, taken):
    module = Ending(lambda z: torch.sigmoid(z)[:, taken]).eval()
    veiled = VeiledModule(module, 0.5, shape=shape)
    veiled(RECORDS[:4])  # so few logits may all lie from 0 to 1
    with pytest.raises(ValueError, match='Say outputs="probabilities"'):
        veiled(RECORDS)
    assert VeiledModule(module, 0.5, shape=shape, outputs="probabilities")(RECORDS).shape == module(RECORDS).shape


def test_logits_that_lie_from_0_to_1_by_chance_are_taken():
    logits = torch.tensor([[0.2, 0.9, 0.4], [0.1, 0.3, 0.1]])
    assert torch.equal(VeiledModule(torch.nn.Identity(), 2.0)(logits).argmax(1), logits.argmax(1))
    for row in logits:
        assert VeiledModule(torch.nn.Identity(), 2.0)(row[None]).shape == (1, 3)
        assert VeiledModule(torch.nn.Identity(), 0.5, shape=MultiLabel())(row[None]).shape == (1, 3)
        assert VeiledModule(torch.nn.Identity(), 0.5, shape=Binary())(row).shape == (3,)
    copies = torch.full((64,), 0.3)  # as whoever warms a model up asks
    assert VeiledModule(torch.nn.Identity(), 0.5, shape=Binary())(copies).shape == (64,)


def test_once_logits_were_seen_a_row_that_looks_like_probabilities_is_taken():
    veiled = VeiledModule(torch.nn.Identity(), 2.0)
    unlucky = torch.tensor([[0.25, 0.5, 0.25]])
    veiled(torch.tensor([[-1.0, 3.0, 0.5]]))
    assert veiled(unlucky).shape == (1, 3)
    with pytest.raises(ValueError, match='Say outputs="probabilities"'):
        VeiledModule(torch.nn.Identity(), 2.0)(unlucky)


def test_answers_without_finite_rows_settle_nothing():
    veiled = VeiledModule(torch.nn.Identity(), 2.0)
    with pytest.raises(ValueError, match="Row 0"):
        veiled(torch.full((2, 3), torch.nan))
    assert veiled(torch.empty(0, 3)).shape == (0, 3)
    with pytest.raises(ValueError, match='Say outputs="probabilities"'):
        veiled(torch.tensor([[0.25, 0.5, 0.25]]))


def test_logarithms_of_probabilities_are_logits():
    logs = VeiledModule(torch.nn.Sequential(network(), torch.nn.LogSoftmax(dim=1)).eval(), 2.0, secret=SECRET)
    plain = VeiledModule(network(), 2.0, secret=SECRET)
    assert torch.equal(logs(RECORDS).argmax(1), plain(RECORDS).argmax(1))
    assert torch.allclose(logs(RECORDS), plain(RECORDS), atol=1e-5)


def test_a_last_layer_that_answers_do_not_go_through_has_a_way_out_too():
    unused = WithLayer(torch.nn.Sigmoid(), is_used=False).eval()
    with pytest.raises(ValueError, match=r"wrap it: nn.Sequential\(module, nn.Identity\(\)\)"):
        VeiledModule(unused, 2.0)
    z = VeiledModule(torch.nn.Sequential(unused, torch.nn.Identity()), 2.0)(RECORDS)
    assert torch.equal(z.argmax(1), network()(RECORDS).argmax(1))


class Column(torch.nn.Module):
    """The first number of each row."""

    def forward(self, rows):
        return rows[:, 0]


def test_more_axes_must_be_said_because_pictures_have_classes_first():
    places = torch.nn.Sequential(network(), torch.nn.Unflatten(1, (1, 3))).eval()
    with pytest.raises(ValueError, match=r"3 axes; where the last one holds the classes, say shape=PerPosition\(\)"):
        VeiledModule(places, 0.5)(RECORDS)
    z = VeiledModule(places, 0.5, shape=PerPosition(), secret=SECRET)(RECORDS)
    assert torch.equal(z.argmax(-1)[:, 0], network()(RECORDS).argmax(-1))
    with pytest.raises(ValueError, match="without logits=True"):
        VeiledModule(network(), 0.5, shape=MultiLabel(logits=True))


def test_no_public_name_leads_to_raw_scores():
    bare = network()(RECORDS).detach()
    asks = [((RECORDS,), {}), (("",), {}), (("_behind",), {}), (("0",), {})]
    for raw in (bare, torch.softmax(bare, dim=1)):
        assert names_that_answer_with(raw.numpy(), VeiledModule(network(), 2.0), asks) == []
    ordinary = torch.nn.Sequential(network())
    assert names_that_answer_with(bare.numpy(), ordinary, asks), "the search finds them where they are"


def test_hooks_see_veiled_answers_only():
    seen = []
    veiled = VeiledModule(network(), 2.0)
    for module in veiled.modules():
        module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    z = veiled(RECORDS)
    assert len(seen) == 1
    assert torch.equal(seen[0], z)


def test_state_dict_round_trip():
    bare, veiled = network(), VeiledModule(network(), 2.0, secret=SECRET)
    assert list(veiled.state_dict()) == list(bare.state_dict())
    assert [name for name, _ in veiled.named_parameters()] == [name for name, _ in bare.named_parameters()]
    assert len(list(veiled.buffers())) == len(list(bare.buffers()))
    before = veiled(RECORDS)
    file = io.BytesIO()
    torch.save(veiled.state_dict(), file)
    file.seek(0)
    other = VeiledModule(torch.nn.Sequential(*map(copy.deepcopy, bare)), 2.0, secret=SECRET)
    torch.nn.init.zeros_(next(other.parameters()).data)
    other.eval()
    assert not torch.equal(other(RECORDS), before)
    assert "matched" in str(other.load_state_dict(torch.load(file)))
    assert torch.equal(other(RECORDS), before)


def test_moving_and_modes_reach_the_module():
    veiled = VeiledModule(network(), 2.0)
    assert not veiled.training
    assert veiled.train().training
    assert veiled._behind[0][1].training
    assert not veiled.eval()._behind[0].training
    assert veiled.double()(RECORDS.double()).dtype == torch.float64
    assert {parameter.dtype for parameter in veiled.parameters()} == {torch.float64}
    assert veiled.to("meta").state_dict()["0.weight"].device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_out_as_float32(dtype):
    class Halved(torch.nn.Module):
        def forward(self, x):
            return x.to(dtype)

    z = VeiledModule(torch.nn.Sequential(network(), Halved()), 2.0)(RECORDS)
    assert z.dtype == torch.float32
    assert torch.allclose(z.sum(1), torch.ones(len(z)), atol=1e-6)


def scripted(veiled):
    return torch.jit.script(veiled)


def traced(veiled):
    return torch.jit.trace(veiled, (RECORDS,))


def exported(veiled):
    return torch.export.export(veiled, (RECORDS,))


def exported_to_onnx(veiled):
    return torch.onnx.export(veiled, (RECORDS,), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize("record", [scripted, traced, exported, exported_to_onnx])
def test_a_recorded_graph_is_refused(record):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates TorchScript
        with pytest.raises(RuntimeError, match="A VeiledModule cannot be scripted, traced or exported"):
            record(VeiledModule(network(), 2.0))


def test_compiling_leaves_the_veil_outside_the_graph():
    compiled = torch.compile(VeiledModule(network(), 2.0), backend="eager")
    first, second = compiled(RECORDS), compiled(RECORDS)
    assert not torch.equal(first, second), "draws are fresh each time"


def test_it_is_not_pickled_whole():
    with pytest.raises(TypeError, match="save and load its state_dict"):
        pickle.dumps(VeiledModule(network(), 2.0))
    with pytest.raises(TypeError, match="save and load its state_dict"):
        torch.save(VeiledModule(network(), 2.0), io.BytesIO())


def test_what_is_no_classifier_is_refused():
    class Two(torch.nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ValueError, match="Expected a tensor from the module, got tuple"):
        VeiledModule(Two(), 2.0)(RECORDS)
    with pytest.raises(ValueError, match=r"Expected a torch.nn.Module, got function"):
        VeiledModule(scripted, 2.0)
    with pytest.raises(ValueError, match="epsilon"):
        VeiledModule(network(), 0.0)


def test_repeated_answers_with_a_secret_are_the_same_bytes():
    veiled = VeiledModule(network(), 2.0, secret=SECRET)
    assert np.array_equal(veiled(RECORDS).numpy(), veiled(RECORDS).numpy())
    assert veiled.guarantee.epsilon == 2.0


def test_the_page_runs():
    run_page("torch")
