"""What goes between a program and the host: the streams of arguments and results, and the variables of the state."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ..trace.aval import DEVICE, Aval
from ..trace.prims.memory import cut_array, join_array


class Stream(NamedTuple):
    """A host stream for a leaf: in how many parts it goes, along which axis it is cut for that, and from which end."""

    stream: Any
    parts: int = 1
    axis: Optional[int] = None
    reverse: bool = False

    @property
    def view(self) -> Optional[np.dtype]:
        """PopXL's structured dtype for float8, None for all other dtypes."""
        dtype: np.dtype = self.stream.dtype.as_numpy()
        return dtype if dtype.names else None

    def fed(self, x: np.ndarray, transfers: int) -> np.ndarray:
        """A leaf as the array that a run takes, with an axis of host transfers if there are several.

        What a stream has fewer elements of than the program has transfers is filled up; nobody reads that.
        """
        if self.view is not None:
            x = x.view(self.view)
        if transfers == 1:
            return x
        if self.axis is not None:
            x = cut_array(x, self.parts, self.axis)[::-1 if self.reverse else 1]
        x = x.reshape(self.parts, *self.stream.shape)
        if self.parts == 1:
            return np.broadcast_to(x, (transfers, *self.stream.shape))
        return x if self.parts == transfers else np.concatenate(
            [x, np.zeros((transfers - self.parts, *self.stream.shape), x.dtype)])

    def place_for(self, out: np.ndarray, transfers: int) -> np.ndarray:
        """The array that a run writes a leaf into: the leaf's own memory if it can be."""
        if self.view is not None:
            out = out.view(self.view)
        if transfers == 1:
            return out
        if self.parts == transfers and not self.axis and not self.reverse and out.flags.c_contiguous:
            return out.reshape(transfers, *self.stream.shape)
        return np.empty((transfers, *self.stream.shape), out.dtype)

    def fetch(self, written: np.ndarray, out: np.ndarray) -> None:
        """Bring what a run wrote into the leaf."""
        view = out if self.view is None else out.view(self.view)
        if np.shares_memory(written, view):
            return
        used = written[:self.parts][::-1 if self.reverse else 1]
        view[...] = join_array(used, self.axis) if self.axis is not None else used.reshape(view.shape)


class Stored(NamedTuple):
    """The variables of a leaf of the state: one on the device, or one for each entry of a remote buffer."""

    variables: Tuple[Any, ...]
    aval: Aval

    @property
    def view(self) -> Optional[np.dtype]:
        """PopXL's structured dtype for float8, None for all other dtypes."""
        dtype: np.dtype = self.variables[0].dtype.as_numpy()
        return dtype if dtype.names else None

    def written(self, x: np.ndarray) -> Dict[Any, np.ndarray]:
        """The values of the variables for a leaf's."""
        x = x if self.view is None else x.view(self.view)
        if self.aval.memory == DEVICE:
            return {self.variables[0]: x}
        rows = np.ascontiguousarray(x).reshape(len(self.variables), *self.variables[0].shape)
        return {v: rows[i, ...].copy() for i, v in enumerate(self.variables)}

    def read(self, data: Dict[Any, np.ndarray]) -> np.ndarray:
        """The leaf for the variables' values."""
        if self.aval.memory == DEVICE:
            x = np.array(data[self.variables[0]])
        else:
            x = np.stack([data[v] for v in self.variables]).reshape(self.aval.shape)
        return x if self.view is None else x.view(self.aval.dtype)


