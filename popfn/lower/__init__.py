"""Floor 3: from a jaxpr to a PopXL program that runs."""
