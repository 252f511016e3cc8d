"""The examples, and the programs in the README and in the pages of docs/, run."""
import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_digits_learns_and_draws(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["digits.py"])
    digits = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    picture = tmp_path / "loss.png"
    accuracy = digits["main"](["--epochs", "8", "--plot", str(picture)])
    out = capsys.readouterr().out
    assert accuracy > 0.93
    assert re.search(r"the training step is a jaxpr of \d+ equations", out)
    assert re.search(r"accuracy on 360 test images: 9\d\.\d%", out)
    losses = [float(x) for x in re.findall(r"loss (\d\.\d+)", out)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.2
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000


@pytest.mark.slow
def test_digits_reaches_its_accuracy():
    digits = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    assert digits["main"]([]) >= 0.96


def example(name, *argv):
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](list(argv))


def test_characters_learns_to_write(capsys):
    last = example("characters", "--steps", "60", "--length", "20")
    out = capsys.readouterr().out
    first = float(re.search(r"step +7  loss (\d\.\d+)", out).group(1))
    assert last < first - 0.5 and last < 3.3
    assert re.search(r"\d{3},\d{3} characters, 1\d\d different ones", out)
    written = out.split(" s\n")[-1].rstrip("\n")
    assert written.startswith("The ") and len(written) == 24


@pytest.mark.slow
def test_characters_reaches_its_loss():
    assert example("characters") < 2.0


def test_convolutions_reads_digits(capsys):
    assert example("convolutions", "--epochs", "4") > 0.93
    losses = [float(x) for x in re.findall(r"loss (\d\.\d+)", capsys.readouterr().out)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8


def test_curvature_finds_the_largest_eigenvalues(capsys):
    found = example("curvature", "--count", "2")
    assert len(found) == 2 and found[0] >= found[1] > 0.3
    assert capsys.readouterr().out.count("2410 parameters, curvatures") == 3


def test_serialised_digits_are_equal_in_all_io_modes(capsys):
    losses = example("serialised_digits", "--epochs", "2", "--steps", "4")
    out = capsys.readouterr().out
    assert list(losses) == ["compute", "io", "io_overlapped", "whole"]
    np.testing.assert_array_equal(losses["compute"], losses["io"])
    np.testing.assert_array_equal(losses["compute"], losses["io_overlapped"])
    np.testing.assert_allclose(losses["compute"], losses["whole"], rtol=1e-5)
    assert losses["whole"].shape == (28,) and losses["whole"][-1] < 0.5 * losses["whole"][0]
    assert [*map(int, re.findall(r"(\d+) host transfers?", out))] == [4, 4, 4, 1]
    assert "4 x f32[4,32,128]@remote" in out and 'h2d_stream((32, 64), popxl.float32, name="x")' in out
    assert "compute, io, io_overlapped: all 28 losses are equal, bit for bit" in out


@pytest.mark.parametrize("residuals, buffers", [("recompute", ["(64, 64), popxl.float32", "(64,), popxl.int32"]),
                                                ("device", [])])
def test_serialised_digits_take_other_residuals(residuals, buffers, capsys):
    losses = example("serialised_digits", "--epochs", "1", "--steps", "2", "--io-mode", "io", "--residuals", residuals)
    np.testing.assert_allclose(losses["io"], losses["whole"], rtol=1e-5)
    assert re.findall(r"remote_buffer\((.*), 2\)", capsys.readouterr().out) == buffers


def test_a_phased_transformer_is_the_plain_one(capsys, tmp_path):
    picture = tmp_path / "loss.png"
    phased, plain = example("phased_transformer", "--steps", "12", "--plot", str(picture))
    np.testing.assert_allclose(phased, plain, rtol=1e-5)
    assert phased.shape == (12,) and phased[-1] < phased[0] - 0.5
    out = capsys.readouterr().out
    deep, transfers, shallow = re.search(
        r"12 layers: (\d+) graphs, (\d+) host transfers a step\n4 layers: (\d+) graphs", out).groups()
    assert deep == shallow and transfers == "4"
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("mode", ["compute", "io_overlapped"])
def test_a_phased_transformer_has_one_layer_and_one_part_on_the_chip(mode, capsys):
    """By the shapes in its program: state is remote, and no graph sees all layers or the activations of a batch."""
    example("phased_transformer", "--steps", "1", "--layers", "3", "--io-mode", mode, "--show")
    text = capsys.readouterr().out.split('"""step as a PopXL program.')[1]
    state, graphs = text.split("import popxl", 1)
    assert len(re.findall(r"_layers_\w+\s+\w+\[3,[\d,]*\]@remote", state)) == 3 * 8
    assert "f32[64,256]" in graphs and "f32[2,32,64]" in graphs
    assert re.findall(r"f32\[(?:3|8|4,2),.*|init\(\((?:3|8|4, 2), .*", graphs) == []


def test_data_parallel_digits_are_those_of_one_replica(capsys):
    on_mesh, on_one = example("data_parallel_digits", "--dp", "4", "--epochs", "2")
    np.testing.assert_allclose(on_mesh, on_one, rtol=1e-5)
    assert on_mesh.shape == (28,) and on_mesh[-1] < 0.5 * on_mesh[0]
    out = capsys.readouterr().out
    assert out.startswith("replication factor 4\n")
    assert "f32[32,64]{dp}, i32[32]{dp}\nsums over dp: f32[], " in out
    assert "collectives: 7 x replicated_all_reduce\n" in out  # one for each leaf and one for the loss


@pytest.mark.parametrize("options, dp, rows, padded", [
    ((), 2, 6, 0), (("--remote", "--steps", "2"), 2, 3, 0), (("--dp", "3", "--tp", "2"), 3, 4, 16)])
def test_a_parallel_transformer_is_the_plain_one(options, dp, rows, padded, capsys):
    on_mesh, on_one = example("parallel_transformer", "--updates", "8", "--layers", "2", *options)
    np.testing.assert_allclose(on_mesh, on_one, rtol=1e-5)
    assert on_mesh.shape == (8,) and on_mesh[-1] < on_mesh[0] - 1
    out = capsys.readouterr().out
    own, whole, moments = (int(n.replace(",", "")) for n in re.search(
        r"keeps ([\d,]+) of ([\d,]+) parameters, and two moments of ([\d,]+)\n", out).groups())
    assert 2 * own < 1.1 * whole and padded <= dp * moments - own <= 2 * padded
    assert f"sums over tp: 4 x f32[{rows},32,64]{{dp}}\n" in out


def test_a_parallel_transformer_has_layers_and_moments_in_remote_memory(capsys, tmp_path):
    """By the shapes in its program: a replica's part of each parameter, and its part of that for each moment."""
    picture = tmp_path / "loss.png"
    example("parallel_transformer", "--updates", "1", "--layers", "7", "--remote", "--show", "--plot", str(picture))
    text = capsys.readouterr().out.split('"""step as a PopXL program.')[1]
    buffers = re.findall(r"remote_variable\(\s*np\.zeros\(\s*\((?:\d, )?([\d, ]+)\),", text)
    assert {shape: buffers.count(shape) for shape in buffers} == {
        "64, 16": 3, "16, 64": 1, "64, 64": 2, "64,": 2, "512": 8, "2048": 4, "32": 4}
    assert not re.search(r"popxl\.variable\(\s*np\.zeros\(\s*\((?:\d, )?7\b", text)
    assert picture.stat().st_size > 10_000


PAGES = [p for p in sorted((ROOT / "docs").glob("*.md")) if "```python" in p.read_text(encoding="utf-8")]


def outputs_that_differ(page):
    """Run a page's blocks of Python in one scope; the outputs that are not the block of text right behind them."""
    scope, found, printed = {}, [], ""
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.S | re.M):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block, "page", "exec"), scope)
            printed = out.getvalue()
        elif kind == "text" and block != printed:
            found.append(printed)
    return found


def test_there_are_pages():
    assert {"batch_serialise.md", "shard.md"} <= {p.name for p in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_run(path):
    assert outputs_that_differ(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_links_lead_to_files(path):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (path.parent / link).is_file()] == []


def test_a_wrong_page_is_found():
    page = "```python\nx = {}\n```\ntext\n```python\nprint(x)\n```\n```text\n1\n```\n"
    assert outputs_that_differ(page.format(1)) == [] and outputs_that_differ(page.format(2)) == ["2\n"]
    with pytest.raises(NameError):
        outputs_that_differ(page.format("y"))


def test_the_readmes_program_runs(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program, = re.findall(r"```python\n(.*?)```", text, re.S)
    scope = {}
    exec(compile(program, "README.md", "exec"), scope)
    out = capsys.readouterr().out
    assert out.startswith("{ lambda ;") and "import popxl" in out
    assert scope["params"]["w1"].shape == (64, 32) and scope["value"] < 3
