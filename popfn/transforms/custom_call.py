"""CustomCall: an operation of the user's own, that NumPy code evaluates and PopXL code lowers."""
from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, Sequence, Tuple, Union

import numpy as np

from ..trace.aval import Aval
from ..trace.errors import JaxprError, MissingRuleError, message
from ..trace.primitive import MappedAxis, Primitive


class Operation(abc.ABC):
    """What a user said of an operation, for arguments of one structure: rules on flat lists."""

    label: str  # what errors call it

    @abc.abstractmethod
    def infer(self, avals: Sequence[Aval]) -> Tuple[Aval, ...]:
        """The types of the results."""

    @abc.abstractmethod
    def host(self, arrays: Sequence[np.ndarray]) -> Tuple[np.ndarray, ...]:
        """The results."""

    @abc.abstractmethod
    def lowering(self, px: Any, tensors: Sequence[Any]) -> Sequence[Any]:
        """The results as PopXL tensors."""

    @abc.abstractmethod
    def batching(self, call: CustomCall, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any],
                 ) -> Tuple[Sequence[Any], Sequence[Any]]:
        """The results over a mapped axis, and where they have it."""

    def __repr__(self) -> str:  # printed jaxprs hold it, and strings can be read back
        return repr(self.label)


@dataclass(frozen=True)
class CustomCall(Primitive):
    """An operation of the user's own. A string stands for one in a jaxpr that was read from its text."""

    operation: Union[Operation, str]
    multiple: ClassVar[bool] = True

    @property
    def known(self) -> Operation:
        """The operation."""
        if isinstance(self.operation, str):
            raise JaxprError(f"the operation {self.operation} is not known: the jaxpr was read from its text, which "
                             "names operations only")
        return self.operation

    def abstract(self, *avals: Aval) -> Tuple[Aval, ...]:
        return self.known.infer(avals)

    def eval(self, *arrays: np.ndarray) -> Tuple[np.ndarray, ...]:
        return self.known.host(arrays)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Tuple[Any, Any]:
        raise MissingRuleError(message(f"custom_call {self.known.label} has no gradient rule",
                                       "way out: pass jvp=rule or vjp=(fwd, bwd) to pf.custom_call"))

    def batch(self, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any]) -> Tuple[Any, Any]:
        results, out_dims = self.known.batching(self, axis, args, dims)
        return tuple(results), tuple(out_dims)

    def lower(self, px: Any, *tensors: Any) -> Any:
        return tuple(self.known.lowering(px, tensors))
