"""What the tests of popfn.host share: a test that uses the fixture `engine` runs on each engine."""
import engine_checks
import pytest


@pytest.fixture(params=engine_checks.ENGINES)
def engine(request, monkeypatch):
    """The engine that sessions of the test use."""
    monkeypatch.setenv("POPFN_ENGINE", request.param)
    return request.param


@pytest.fixture(scope="module", autouse=True)
def checked_on_xla():
    """Behind the tests of a module, what they checked on the NumPy engine is checked on the other one."""
    yield
    engine_checks.check_on_xla()
