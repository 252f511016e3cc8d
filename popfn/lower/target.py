"""Where programs are lowered to: the PopXL of Graphcore's SDK, or popfn's own on this machine.

This is the only file that imports either of them. Everything else gets a `Target` and uses the module in it.
"""
from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Dict, List, NamedTuple, Optional

import popfn.host

from ..trace.errors import ArgumentError, DeviceError, message, user_source

#: What PyPI has under the names of the SDK's packages.
STRANGERS = {
    "popart": "population based training for PyTorch models",
    "poplar": "selection effects in astronomy",
}


class Target(NamedTuple):
    """A module that offers the PopXL API, and the devices that its sessions run on.

    `devices` maps the names that `pf.Session` takes to those that the module's own Session takes; the first is the
    default.
    """

    name: str
    module: Any
    devices: Dict[str, str]

    @property
    def is_sdk(self) -> bool:
        """Whether this is Graphcore's PopXL."""
        return self.name == "sdk"

    def device(self, name: Optional[str], program: str) -> str:
        """The module's name for a device, by default the first. Raises DeviceError if this target does not have it."""
        if name is None:
            return next(iter(self.devices.values()))
        if name in self.devices:
            return self.devices[name]
        known = name in HOST.devices or name in SDK_DEVICES
        other = "host" if name in HOST.devices else "sdk"
        raise DeviceError(message(
            f"{program} was lowered for the {self.name}, which has no device {name!r}",
            f"its devices: {', '.join(map(repr, self.devices))}",
            stranger_note() if known and not self.is_sdk else None,
            f'way out: lower it again with pf.lower(..., target="{other}")'
            + (", on a machine with Graphcore's SDK" if other == "sdk" else "") if known else
            "way out: leave device= out, or give one of these", at=user_source(2)))


HOST = Target("host", popfn.host, {"host": "cpu"})
SDK_DEVICES = {"ipu_hw": "ipu_hw", "ipu_model": "ipu_model", "cpu": "cpu"}


@functools.lru_cache(maxsize=None)
def find_target(name: str = "auto") -> Target:
    """The target of a name: "host", "sdk", or "auto" for the SDK where it is installed and the host elsewhere.

    Raises DeviceError if the SDK is asked for and not there, or is there and does not work; ArgumentError for another
    name.

    >>> find_target("host").devices
    {'host': 'cpu'}
    """
    if name == "host":
        return HOST
    if name not in ("auto", "sdk"):
        raise ArgumentError(message(f'target= is "auto", "host" or "sdk", got {name!r}', at=user_source(2)))
    if find_package("popxl") is None:
        if name == "auto":
            return HOST
        raise DeviceError(message(
            "there is no PopXL of Graphcore's SDK in this Python", f"looked in: {sys.executable}", stranger_note(),
            "way out: install the Poplar SDK and enable it (it comes from Graphcore and is not on PyPI), or use "
            'target="host"', at=user_source(2)))
    try:
        module = importlib.import_module("popxl")
    except Exception as e:
        raise DeviceError(message(
            f"popxl is installed but cannot be imported: {type(e).__name__}: {e}", stranger_note(),
            'way out: enable the SDK in this shell (source its enable.sh), or use target="host"',
            at=user_source(2))) from e
    if module is popfn.host:  # inside `python -m popfn.host script.py`
        return HOST
    if not all(hasattr(module, part) for part in ("Ir", "Session", "ops")):
        raise DeviceError(message(
            f"the package popxl that is installed here is not Graphcore's: {getattr(module, '__file__', module)}",
            'way out: uninstall it, or use target="host"', at=user_source(2)))
    return Target("sdk", module, SDK_DEVICES)


def find_package(name: str) -> Optional[ModuleSpec]:
    """Where a top-level package would be imported from, None if there is none. Nothing is imported."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module without a spec stands in sys.modules
        return None


def strangers() -> List[str]:
    """The packages in this Python that have a name of the SDK's and are not the SDK's."""
    found = []
    for name in STRANGERS:
        spec = find_package(name)
        inside = list(spec.submodule_search_locations or ()) if spec is not None else []
        if spec is not None and PathFinder.find_spec(f"{name}._internal", inside) is None:
            found.append(name)
    return found


def stranger_note() -> Optional[str]:
    """For an error: which packages of the SDK's names are not the SDK's, and what to do about it."""
    found = strangers()
    if not found:
        return None
    what = "; ".join(f"the {name} that is installed here is PyPI's ({STRANGERS[name]})" for name in found)
    return f"{what}; that has nothing to do with IPUs: pip uninstall {' '.join(found)}"
