"""Settings of all tests: one thread per worker, XLA on the CPU, profiles of hypothesis, every jaxpr checked."""
import os

from hypothesis import HealthCheck, settings

# Read when NumPy and JAX are first imported, which is after this file. Parallel workers share the cores.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import popfn  # noqa: E402  after the settings above, because it imports NumPy

# The usual run takes the same examples every time, so that a change is judged by what it changed.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True,
                          suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile("ci")

popfn.set_checks(True)
