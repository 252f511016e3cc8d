"""Floor 0: capture. Avals, jaxprs, primitives, arrays and the trace that records."""
