"""Replicas on several devices and in several processes: what one device computes."""
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

WORKER = pathlib.Path(__file__).with_name("xla_worker.py")
ROOT = WORKER.parents[2]
REPLICAS = 4


def start(result, *arguments, devices=1):
    env = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT),
               XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
    command = [sys.executable, str(WORKER), str(result), str(REPLICAS), *map(str, arguments)]
    return subprocess.Popen(command, env=env, cwd=str(WORKER.parent), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, universal_newlines=True)


def results(paths, processes):
    for process in processes:
        try:
            output, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            raise
        assert process.returncode == 0, output
    return [dict(np.load(path)) for path in paths]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of one process with one device."""
    path = tmp_path_factory.mktemp("alone") / "result.npz"
    (found,) = results([path], [start(path)])
    assert found["devices"] == 1
    assert found["losses"].shape == (3, REPLICAS) and np.ptp(found["losses"], axis=1).max() == 0
    assert found["losses"][-1, 0] != found["losses"][0, 0]
    np.testing.assert_array_equal(found["shard"].reshape(-1)[:10], np.arange(10) + 3)
    assert set((found["some"] != -99).all(-1).sum(-1).ravel()) == {0, 1, 2}  # slots of a replica in a run
    return found


def check_equal(found, alone):
    for name in ("losses", "w", "own", "shard", "some"):
        np.testing.assert_allclose(found[name], alone[name], 1e-5, 1e-5, err_msg=name)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_several_devices_give_what_one_gives(tmp_path, alone, count):
    path = tmp_path / "result.npz"
    (found,) = results([path], [start(path, devices=count)])
    assert found["devices"] == {2: 2, 3: 2, 8: 4}[count]
    check_equal(found, alone)


@pytest.mark.skipif(not hasattr(jax.config, "jax_cpu_collectives_implementation"),
                    reason="this JAX has no collectives between processes on CPUs")
@pytest.mark.parametrize("processes,devices", [(2, 1), (2, 2), (4, 1)])
def test_several_processes_give_what_one_gives(tmp_path, alone, processes, devices):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    paths = [tmp_path / f"{i}.npz" for i in range(processes)]
    started = [start(path, port, processes, i, devices=devices) for i, path in enumerate(paths)]
    found = results(paths, started)
    for one in found:
        np.testing.assert_allclose(one["w"], alone["w"], 1e-5, 1e-5)
    joined = {name: np.concatenate([one[name] for one in found], axis) for name, axis in
              (("losses", 1), ("own", 0), ("shard", 0), ("some", 1))}
    check_equal(dict(joined, w=found[0]["w"]), alone)
