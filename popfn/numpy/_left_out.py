"""The names of the array API standard that popfn.numpy has not, and why."""
from typing import Dict

_COMPLEX = "complex numbers have no form on the IPU: carry real and imaginary part"
_WIDE = "the IPU computes with 32 bits at most"
_SIZE = "the shape of the result would depend on data, and shapes are known while tracing"

#: Reasons by name.
LEFT_OUT: Dict[str, str] = {
    "complex64": _COMPLEX, "complex128": _COMPLEX, "conj": _COMPLEX, "imag": _COMPLEX, "real": _COMPLEX,
    "int64": _WIDE, "uint64": _WIDE,
    "float64": f"{_WIDE}: np.float64 is for checks on the host, within pf.enable_float64()",
    "nonzero": f"{_SIZE}: pnp.where(mask, x, y) keeps the shape",
    "nextafter": "PopXL has no way to the bits of a float",
    "fft": "an extension for complex numbers, which have no form on the IPU",
}
