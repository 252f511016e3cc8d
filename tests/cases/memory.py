"""Rows of values moved between memories, cut into parts and put together, with their definitions."""
from typing import Any

import numpy as np
from references import REFERENCES

from .table import LINEAR, P, inf, nan, row, values


def cut(p: Any, x: np.ndarray) -> np.ndarray:
    size = x.shape[p.axis] // p.steps
    return np.stack([np.take(x, range(i * size, (i + 1) * size), p.axis) for i in range(p.steps)])


REFERENCES.update({"place": lambda p, x: np.array(x), "cut": cut, "join": lambda p, x: np.concatenate(list(x), p.axis)})
LINEAR.update(place=[(0,)], cut=[(0,)], join=[(0,)])

for memory in ("device", "remote"):
    row(P.Place(memory), "f32[2,3]")
    row(P.Place(memory), "f16[3]")
    row(P.Place(memory), "~f32[]")
    row(P.Place(memory), "i32[2]")
    row(P.Place(memory), "bool[2,1]")
    row(P.Place(memory), "u8[3]")
    row(P.Place(memory), "f32[0,2]")
    values(P.Place(memory), [-0.0, nan, inf], "f32")

for memory in ("", "device"):
    row(P.Cut(3, 0, memory), "f32[6,2]")
    row(P.Cut(2, 1, memory), "f32[2,4]")
    row(P.Join(0, memory), "f32[3,2,2]")
    row(P.Join(1, memory), "f32[2,2,2]")
row(P.Cut(1, 0), "f32[3]")
row(P.Cut(4, 0), "f32[4]")
row(P.Cut(2, 1), "f16[1,4,2]")
row(P.Cut(3, 2), "f32[2,2,3]")
row(P.Cut(2, 0), "i32[4,2]")
row(P.Cut(2, 1), "bool[2,4]")
row(P.Cut(2, 1), "u8[2,4]")
row(P.Cut(2, 0), "f32[0,3]")
row(P.Cut(2, 1), "f32[0,4]")
values(P.Cut(2, 0), [-0.0, nan, inf, -inf], "f32")
row(P.Join(0), "f32[1,3]")
row(P.Join(0), "f32[4,1]")
row(P.Join(1), "f16[2,1,2,2]")
row(P.Join(2), "f32[3,2,2,1]")
row(P.Join(0), "i32[2,2,2]")
row(P.Join(1), "bool[2,2,2]")
row(P.Join(1), "u8[2,2,2]")
row(P.Join(0), "f32[2,0,3]")
row(P.Join(1), "f32[2,0,2]")
values(P.Join(0), [[-0.0, nan], [inf, -inf]], "f32")
