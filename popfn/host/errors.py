"""The exceptions that PopXL defines itself."""

from typing import Any, Optional, Tuple


class popart_exception(Exception):
    """A fault in the shapes or dtypes of an op. It derives from plain `Exception`, as in PopART."""

    #: The op on a remote buffer and its offset, where that is out of range.
    outside: Optional[Tuple[Any, int]] = None


class UndefinedValue(Exception):
    """A property that has no value yet, such as the IPU of a variable that no op uses."""


class HostDeviceWarning(UserWarning):
    """A Session was asked for another device than "cpu": the program runs on this machine all the same."""
