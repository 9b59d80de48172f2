"""What many tests need."""

import pytest

from scoreveil.mechanisms import loading


@pytest.fixture(params=["numpy", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to an answer: plain numpy, and the compiled kernels."""
    if request.param == "numpy":
        monkeypatch.setattr(loading, "kernel", lambda mechanism: None)
    else:
        assert loading.wait()
    return str(request.param)
