"""Which PopXL a program is lowered to, and what is said where there is none."""
import os
import sys
import types

import numpy as np
import pytest
from lowering_cases import lower, program, s, sgd

import popfn.host
from popfn.lower.session import Session
from popfn.lower.target import HOST, find_target, strangers
from popfn.trace import prims
from popfn.trace.errors import ArgumentError, DeviceError, file_name


@pytest.fixture(autouse=True)
def fresh_search():
    """Nothing is remembered from one test to the next."""
    before = set(sys.modules)
    find_target.cache_clear()
    yield
    find_target.cache_clear()
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("popxl", "popart", "poplar"):
            del sys.modules[name]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that puts a package in front of all others."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, text=""):
        path = tmp_path / name.replace(".", "/")
        path.mkdir(parents=True)
        (path / "__init__.py").write_text(text)
    return make


SDK = "from popfn.host import *\nfrom popfn.host import ops\n"


def lines(error):
    """The lines of a message without the one that names the place in the tests, which has to be there."""
    found = [line.strip() for line in str(error.value).splitlines()]
    assert found[1].startswith(f"at {os.path.dirname(file_name(__file__))}")
    return found[:1] + found[2:]


def test_without_an_sdk_it_is_the_host():
    assert find_target("auto") is HOST and find_target("host") is HOST and not HOST.is_sdk
    assert HOST.module is popfn.host
    assert not {"popxl", "popart"} & set(sys.modules)


def test_an_unknown_target():
    with pytest.raises(ArgumentError, match='^target= is "auto", "host" or "sdk", got \'gpu\'\n'):
        find_target("gpu")


def test_the_sdk_is_asked_for_and_not_there():
    with pytest.raises(DeviceError) as error:
        find_target("sdk")
    assert lines(error) == [
        "there is no PopXL of Graphcore's SDK in this Python",
        f"looked in: {sys.executable}",
        "way out: install the Poplar SDK and enable it (it comes from Graphcore and is not on PyPI), or use "
        'target="host"']


def test_the_unrelated_packages_of_pypi_are_refused_by_name(package):
    package("popart", "raise SystemError('not to be imported')")
    assert strangers() == ["popart"]
    assert find_target("auto") is HOST
    with pytest.raises(DeviceError) as error:
        find_target("sdk")
    assert lines(error)[2] == ("the popart that is installed here is PyPI's (population based training for PyTorch "
                               "models); that has nothing to do with IPUs: pip uninstall popart")
    package("poplar")
    assert strangers() == ["popart", "poplar"]
    with pytest.raises(DeviceError, match="pip uninstall popart poplar"):
        find_target("sdk")


def test_the_sdks_own_popart_is_no_stranger(package):
    package("popart._internal")
    assert strangers() == []


def test_an_sdk_is_found_and_used(package):
    package("popxl", SDK)
    found = find_target("auto")
    assert found.is_sdk and found.module is sys.modules["popxl"] and found is not HOST
    assert find_target("sdk").module is found.module
    assert find_target("host") is HOST
    made, args, state = program("sgd", target="auto")
    assert made.target.is_sdk
    with Session(made, state, device="cpu") as session:
        session.run(*args)
    with pytest.raises(DeviceError) as error:
        Session(made, state, device="host")
    assert lines(error) == ["sgd was lowered for the sdk, which has no device 'host'",
                            "its devices: 'ipu_hw', 'ipu_model', 'cpu'",
                            'way out: lower it again with pf.lower(..., target="host")']


@pytest.mark.parametrize("target", ["auto", "sdk"])
def test_an_sdk_that_does_not_work_is_not_passed_over(package, target):
    package("popxl", "import popart._internal.ir")
    package("popart")
    with pytest.raises(DeviceError) as error:
        find_target(target)
    assert lines(error) == [
        "popxl is installed but cannot be imported: ModuleNotFoundError: No module named 'popart._internal'",
        "the popart that is installed here is PyPI's (population based training for PyTorch models); that has nothing "
        "to do with IPUs: pip uninstall popart",
        'way out: enable the SDK in this shell (source its enable.sh), or use target="host"']


def test_another_package_named_popxl_is_refused(package):
    package("popxl", "version = 1")
    with pytest.raises(DeviceError, match="^the package popxl that is installed here is not Graphcore's: .*popxl"):
        find_target("auto")


def test_popxl_that_is_the_host_is_the_host(monkeypatch):
    monkeypatch.setitem(sys.modules, "popxl", popfn.host)
    assert find_target("auto") is HOST and find_target("sdk") is HOST


def test_a_module_without_a_spec_is_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "popart", types.ModuleType("popart"))
    assert strangers() == []


# ---------------------------------------------------------------------------- devices
def test_devices_of_a_host_program():
    made = lower(prims.exp, s(2), name="f")
    for device in (None, "host"):
        with Session(made, device=device) as session:
            np.testing.assert_array_equal(session.run(np.zeros(2, np.float32)), [1, 1])


@pytest.mark.parametrize("device", ["ipu_hw", "ipu_model", "cpu"])
def test_a_device_of_the_sdk(device):
    with pytest.raises(DeviceError) as error:
        Session(lower(sgd, {"w": s(3, 5), "v": s(5, 2)}, s(4, 3), s(4, 2), state=(0,)), device=device)
    assert lines(error) == [f"sgd was lowered for the host, which has no device {device!r}",
                            "its devices: 'host'",
                            'way out: lower it again with pf.lower(..., target="sdk"), on a machine with '
                            "Graphcore's SDK"]


def test_a_device_of_the_sdk_beside_a_stranger(package):
    package("popart")
    with pytest.raises(DeviceError) as error:
        Session(lower(prims.exp, s(2), name="f"), device="ipu_hw")
    assert "pip uninstall popart" in lines(error)[2]


def test_an_unknown_device():
    with pytest.raises(DeviceError) as error:
        Session(lower(prims.exp, s(2), name="f"), device="gpu")
    assert lines(error) == ["f was lowered for the host, which has no device 'gpu'", "its devices: 'host'",
                            "way out: leave device= out, or give one of these"]
