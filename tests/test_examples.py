"""The examples, and the program in the README, run."""
import re
import runpy
import sys
from pathlib import Path

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


def test_the_readmes_program_runs(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program, = re.findall(r"```python\n(.*?)```", text, re.S)
    scope = {}
    exec(compile(program, "README.md", "exec"), scope)
    out = capsys.readouterr().out
    assert out.startswith("{ lambda ;") and "import popxl" in out
    assert scope["params"]["w1"].shape == (64, 32) and scope["value"] < 3
