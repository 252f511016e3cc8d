"""The page of primitives: it is current, and no hole is without a reason."""
import importlib.util
import re
from pathlib import Path

import pytest

from popfn.trace.primitive import Primitive, primitive_name
from popfn.trace.prims.collectives import LinearCollective
from popfn.trace.prims.elementwise import Sin
from popfn.trace.prims.kinds import Bilinear
from popfn.trace.prims.shaping import LinearOp

SCRIPT = Path(__file__).parent.parent / "docs" / "primitives.py"
spec = importlib.util.spec_from_file_location("docs_primitives", SCRIPT)
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)

HOLES = [(c, rule) for c in docs.listed() for rule in docs.RULES if docs.is_hole(c, rule)]


def test_the_page_is_current():
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page(), "run `python docs/primitives.py`"


def test_the_page_lists_every_primitive_once():
    rows = re.findall(r"^\| `(\w+)`", docs.page(), re.M)
    assert len(rows) > 100 and len(rows) == len({*rows})
    assert {*rows} == {primitive_name(c) for c in docs.listed()}


@pytest.mark.parametrize("cls, rule", HOLES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_no_hole_without_a_reason(cls, rule):
    name = primitive_name(cls)
    assert docs.reason(cls, rule), f"{name} has no {rule} rule: write it, or say why in docs/primitives.py"


def test_no_reason_without_a_hole():
    holes = {(primitive_name(c), rule): c for c, rule in HOLES}
    assert {*docs.REASONS} - {*holes} == set()
    told = [key for key in docs.REASONS if docs.seen_reason(holes[key], key[1]) not in (None, "not linear")]
    assert told == []


def test_what_is_linear_can_be_transposed():
    """So "not linear" is said of nothing that is."""
    linear = [c for c in docs.listed() if issubclass(c, (LinearOp, Bilinear, LinearCollective))]
    assert len(linear) > 20 and not [c for c in linear if docs.is_hole(c, "transpose")]


def test_all_can_be_typed_and_those_with_operands_batched():
    for rule, exceptions in (("abstract", set()), ("batch", {"iota"})):
        assert {primitive_name(c) for c, r in HOLES if r == rule} == exceptions


def test_a_hole_is_seen(monkeypatch):
    assert not docs.is_hole(Sin, "jvp") and not docs.is_hole(Sin, "linearize")
    monkeypatch.delattr(Sin, "slopes")
    assert docs.is_hole(Sin, "jvp") and docs.is_hole(Sin, "linearize")
    assert docs.reason(Sin, "jvp") is None and docs.cell(Sin, "linearize") == "(None)"
    monkeypatch.setattr(LinearOp, "batch", Primitive.batch)
    assert docs.is_hole(Sin, "transpose") and docs.reason(Sin, "transpose") is None
