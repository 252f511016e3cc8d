"""Import this first: it keeps the process, and the libraries that are imported after it, on one core."""
import os
import sys

WHOLE_MACHINE = dict(os.environ), os.sched_getaffinity(0)  # for what is measured on every core
CORE = int(sys.argv[sys.argv.index("--core") + 1]) if "--core" in sys.argv else 0
os.sched_setaffinity(0, {CORE})  # before any library counts the cores
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "")
                           + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ["JAX_PLATFORMS"] = "cpu"
