"""The admin port in a real browser, and the OpenAPI document held against the real gateway."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import api_cases
from gateway_servers import Gateway, gateway, light_model, until
from scoreveil import Veil, fit
from shaped_models import two_sides

pytestmark = pytest.mark.slow

CASES = 150  # 10,000 in make conformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("page"), "", "--demo", "--epsilon", "0.7") as made:
        yield made


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, dict[str, Veil]]]:
    """A gateway with a model behind a veil fitted with ε, one behind a veil without, and one behind an isotonic one."""
    folder = tmp_path_factory.mktemp("fitted")
    sides, veils = two_sides(10), {}
    for name, epsilon in (("digits", 4.0), ("fixed", None)):
        veils[name] = fit(*sides, epsilon=epsilon, advantage=0.05, rng=np.random.default_rng(0))
        veils[name].save(folder / f"{name}.json")
    toml = """
[models.digits]
python = "light_model:make"
veil = "digits.json"

[models.fixed]
python = "light_model:make"
veil = "fixed.json"

[models.plain]
python = "light_model:make"
epsilon = 2.0
"""
    with gateway(folder, toml, PYTHONPATH=light_model(folder)) as made:
        yield made, veils


def opened(browser: Browser, server: Gateway, **options: Any) -> tuple[Page, list[str]]:
    page = browser.new_page(**options)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda request: None if f":{server.admin_port}/" in request.url else problems.append(request.url)
    )
    page.goto(f"http://127.0.0.1:{server.admin_port}/")
    page.wait_for_selector("#promise p")
    page.wait_for_selector(".model")
    return page, problems


def after(page: Page) -> list[float]:
    return [float(text) for text in page.locator("#bars .value:nth-child(5)").all_inner_texts()]


def test_the_playground_veils_what_is_typed(browser: Browser, server: Gateway) -> None:
    page, problems = opened(browser, server)
    with page.expect_response("**/api/veil"):
        page.fill("#vector", "2, 6, 2, 0")
    expect(page.locator("#bars tr")).to_have_count(4)
    before = page.locator("#bars .value:nth-child(3)").all_inner_texts()
    assert before == ["0.200", "0.600", "0.200", "0.000"]
    assert page.locator("tr.top th").inner_text().strip().endswith("1")
    with page.expect_response("**/api/veil") as answer:
        page.click("#again")
    drawn = answer.value.json()["after"]
    expect(page.locator("#bars tr:nth-child(2) .value:nth-child(5)")).to_have_text(f"{drawn[1]:.3f}")
    assert after(page) == [pytest.approx(value, abs=5e-4) for value in drawn]
    assert max(after(page)) == after(page)[1]
    # the words are the library's own
    promise = Veil(0.7).mechanism.guarantee(classes=4)
    assert promise.words in page.inner_text("#promise")
    page.fill("#vector", "1, x")
    assert page.locator("#problem").inner_text() == "Expected 2 to 64 numbers, none below 0, not all 0."
    assert not problems
    page.close()


def test_the_playground_opens_on_the_veil_of_the_served_model(browser: Browser, server: Gateway) -> None:
    page, problems = opened(browser, server)
    expect(page.locator("#epsilon-shown")).to_have_text("0.7")
    expect(page.locator("#promise .big")).to_contain_text("ε = 0.7")
    assert (page.input_value("input[name=mechanism]:checked"), page.input_value("#keep")) == ("isotonic", "1")
    page.focus("#epsilon")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#epsilon-shown")).not_to_have_text("0.7")
    assert not problems
    page.close()


def test_the_playground_by_keyboard_alone(browser: Browser, server: Gateway) -> None:
    page, problems = opened(browser, server)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = []
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.ariaLabel"
            )
        )
    assert {"vector", "epsilon", "mechanism", "keep", "again", "Score of class 0"} <= set(seen)
    page.focus("#epsilon")
    page.keyboard.press("Home")
    expect(page.locator("#promise .big")).to_contain_text("0.1")
    assert page.inner_text("#epsilon-shown") == "0.1"
    page.focus("input[value=isotonic]")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#promise .big")).to_have_text("Nothing is promised.")
    assert page.is_disabled("#keep")
    page.focus("#bars tr:nth-child(2) input")
    before = page.inner_text("#bars tr:nth-child(2) .value")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert float(page.inner_text("#bars tr:nth-child(2) .value")) == pytest.approx(float(before) + 0.05, abs=0.011)
    assert not problems
    page.close()


def test_a_bar_can_be_dragged(browser: Browser, server: Gateway) -> None:
    page, _ = opened(browser, server)
    box = page.locator("#bars tr:nth-child(1) .track").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.62, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.25, middle, steps=5)
    page.mouse.up()
    assert float(page.inner_text("#bars tr:nth-child(1) .value")) == pytest.approx(0.25, abs=0.06)
    page.close()


@pytest.mark.parametrize("model", ["digits", "fixed"])
def test_a_fitted_veil_is_tried_with_its_promise_and_its_regions(
    browser: Browser, fitted: tuple[Gateway, dict[str, Veil]], model: str, tmp_path: Path
) -> None:
    server, veils = fitted
    promise, mechanism = veils[model].guarantee, veils[model].mechanism
    page, problems = opened(browser, server)
    expect(page.locator("input[data-model]")).to_have_count(2)
    expect(page.locator("input[data-model=digits]")).to_be_checked()  # the first model's own
    expect(page.locator("#table")).to_be_visible()
    if model != "digits":
        with page.expect_response("**/api/veil"):
            page.locator(f"input[data-model={model}]").check(force=True)
    expect(page.locator("#table")).to_be_visible()
    assert page.is_disabled("#epsilon")
    assert page.is_disabled("#keep")
    assert page.inner_text("#epsilon-shown") == ("4" if model == "digits" else "none")
    assert promise.words in page.inner_text("#promise")
    big = page.inner_text("#promise .big")
    assert f"advantage {promise.advantage:.3f}" in big
    assert ("ε = 4" in big) == (model == "digits")
    announced = [float(each) for each in page.locator("#announced th").all_inner_texts()[1:]]
    assert announced == [pytest.approx(each, abs=5e-4) for each in mechanism.announced[0]]
    expect(page.locator("#chances td")).to_have_count(mechanism.size * len(announced))
    names = page.locator("#chances th").all_inner_texts()
    assert names[::-1] == [row.words for row in mechanism.rows()]
    if model == "fixed":
        cells = page.locator("#chances td").all_inner_texts()
        assert sorted(set(cells)) == ["", "always"]
        assert cells.count("always") == mechanism.size
    # another vector, its region, and an answer that the veil has
    with page.expect_response("**/api/veil") as answer:
        page.fill("#vector", "0, 97, 1, 1, 1, 0, 0, 0, 0, 0")
    found = answer.value.json()
    (region,) = mechanism.read(np.array([[0, 97, 1, 1, 1, 0, 0, 0, 0, 0.0]]) / 100)[1]
    assert found["table"]["region"] == region
    assert min(abs(max(found["after"]) - mechanism.announced[0])) < 1e-9
    expect(page.locator("#chances tr.here")).to_have_count(1)
    place = page.locator("#chances tr").evaluate_all("rows => rows.findIndex((row) => row.className === 'here')")
    assert place == mechanism.size - 1 - region
    page.fill("#vector", "1, 2")
    expect(page.locator("#problem")).to_have_text("This veil was fitted for 10 classes; these scores have 2.")
    page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    # back to a mechanism
    page.check("input[value=isotonic]", force=True)
    expect(page.locator("#table")).to_be_hidden()
    assert page.is_enabled("#epsilon")
    # the browser's own line about the answer 400
    assert [each for each in problems if "400" not in each] == []
    shown = page.locator(".model h3").all_inner_texts()
    assert ["fitted" in each for each in shown] == [True, True, False]
    assert ["no ε" in each for each in shown] == [False, True, False]
    assert "inf" not in page.inner_text("body").lower().replace("information", "")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_table_fits_and_can_be_read(
    browser: Browser, fitted: tuple[Gateway, dict[str, Veil]], scheme: Any, width: int
) -> None:
    page, problems = opened(browser, fitted[0], color_scheme=scheme, viewport={"width": width, "height": 844})
    page.locator("input[data-model=digits]").check(force=True)
    expect(page.locator("#table")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    worst = page.evaluate(CONTRAST)
    assert worst["ratio"] >= 4.5, worst
    assert not problems
    page.close()


def test_the_playground_refuses_models_without_a_fitted_veil(fitted: tuple[Gateway, dict[str, Veil]]) -> None:
    scores = [0.1] * 10
    for asked in (
        {"scores": scores, "model": "plain"},
        {"scores": scores, "model": "none"},
        {"scores": scores, "model": ["digits"]},
        {"scores": scores, "model": "digits", "epsilon": 2},
        {"scores": [0.5, 0.5], "model": "digits"},
    ):
        status, _, answer = fitted[0].request("POST", "/api/veil", asked, admin=True)
        assert status == 400, asked
        assert set(json.loads(answer)) == {"error"}


def test_the_live_state_follows_requests(browser: Browser, server: Gateway) -> None:
    page, problems = opened(browser, server)
    for _ in range(3):
        assert server.infer(np.zeros((400, 64), dtype=np.float32))[0] == 200
    server.infer(np.zeros((1, 3), dtype=np.float32))
    expect(page.locator(".numbers")).to_contain_text("1,200")
    shown = page.inner_text(".model")
    for words in ("Requests", "Refusals", "malformed 1", "Fresh answers", "Latency", "ms"):
        assert words in shown
    assert "after 1,000 rows" not in shown
    assert not problems
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(browser: Browser, server: Gateway, tmp_path: Path, scheme: Any, width: int) -> None:
    page, problems = opened(browser, server, color_scheme=scheme, viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # every text stands out from what is behind it: WCAG AA, 4.5 : 1
    worst = page.evaluate(CONTRAST)
    assert worst["ratio"] >= 4.5, worst
    page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert not problems
    page.close()


CONTRAST = """() => {
  // color-mix() is told in parts of 1
  const parse = (c) => c.match(/[\\d.]+/g).map((v) => (c.startsWith("color(") ? 255 * v : Number(v)));
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; }
    return [255, 255, 255]; };
  let worst = { ratio: 99 };
  for (const e of document.querySelectorAll("body *")) {
    if (e.disabled || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.checkVisibility() || e.closest("noscript, option, .hidden, .skip")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: e.textContent.slice(0, 40) };
  }
  return worst;
}"""


def test_the_admin_port_is_strict(server: Gateway) -> None:
    status, headers, _ = server.request("GET", "/", admin=True)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    bad: list[Any] = [
        b"x",
        {},
        {"scores": [0.5, 0.5], "epsilon": -1, "mechanism": "isotonic"},
        {"scores": [0.5, 0.5], "epsilon": 1, "mechanism": "other"},
        {"scores": [0.5], "epsilon": 1, "mechanism": "isotonic"},
        {"scores": [-0.5, 1], "epsilon": 1, "mechanism": "isotonic"},
        {"scores": [[0.5, 0.5]], "epsilon": 1, "mechanism": "isotonic"},
        {"scores": "text", "epsilon": 1, "mechanism": "isotonic"},
        {"scores": [0.5, 0.5], "epsilon": None, "mechanism": "isotonic"},
        b"[" * 16384,
        b" " * 20_000,
        b"[]",
    ]
    for body in bad:
        status, _, answer = server.request("POST", "/api/veil", body, admin=True)
        assert status == 400, body
        assert set(json.loads(answer)) == {"error"}
    assert server.request("GET", "/openapi.json", admin=True)[0] == 200
    assert server.request("GET", "/nothing", admin=True)[0] == 404


def test_the_admin_port_answers_for_known_hosts_alone(server: Gateway) -> None:
    """A page of somebody else's whose name leads here (DNS rebinding) is told nothing."""
    for path in ("/", "/metrics", "/api/state", "/openapi.json", "/healthz"):
        for host in ("rebound.example:9090", "127.0.0.1.example", "localhost.example.", "", "a b.c", "[::1].example"):
            status, _, body = server.request("GET", path, admin=True, Host=host)
            assert (status, set(json.loads(body))) == (421, {"error"}), host
        for host in ("127.0.0.1:9090", "localhost", "localhost:9090", "[::1]:9090", "gateway:9090", "10.1.2.3"):
            assert server.request("GET", path, admin=True, Host=host)[0] == 200, host


def test_no_metric_tells_of_scores(server: Gateway) -> None:
    """A thousand rows of one record would show how far its scores moved, if a sum over them were published."""

    def others(samples: dict[str, float]) -> dict[str, float]:
        counts = ("requests_total", "rows_total", "seconds", "refusals_total", "charged_total", "repeated_total")
        counted = tuple(f"scoreveil_{name}" for name in counts)
        return {name: value for name, value in samples.items() if not name.startswith(counted)}

    before = others(server.metrics())
    name, features = "digits", 64
    for value in (0.0, 7.0):
        status, _, body = server.infer(np.full((1000, features), value, dtype=np.float32), name)
        assert status == 200, body
    until(lambda: server.metrics()[f'scoreveil_rows_total{{model="{name}"}}'] >= 2000)
    assert others(server.metrics()) == before
    state = json.loads(server.request("GET", "/api/state", admin=True)[2])["models"][0]
    settings = {"epsilon", "mechanism", "keep", "classes", "memory", "remembers"}
    assert state.keys() - settings == {"model", "requests", "refusals", "rows", "charged", "repeated", "latency"}


def test_schemathesis_finds_no_5xx_and_nothing_undocumented(server: Gateway) -> None:
    seen = api_cases.run(f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{server.admin_port}", CASES)
    assert sum(seen.values()) >= 120
    assert {200, 400} <= set(seen)
