"""Rows of the primitives with effects, whose results are none; what they do is tested in test_debug.py."""
import numpy as np
from references import REFERENCES

from .table import P, row

REFERENCES["print"] = lambda p, on, *xs: []

row(P.Print("{} and {}"), np.True_, "f32[2]", "i32[]", kind="edge")
row(P.Print("{x:.3f}", ("x",)), np.False_, "f16[]", kind="edge")
row(P.Print("nothing to see"), np.True_, kind="values")
row(P.Print("{} {y}", ("y",), 1), np.array([True, False]), "f32[2,3]", "bool[2]", kind="edge")
