"""The families of kernels together: each kind is in one of them, in the table, and named by a test of its numbers."""
import pathlib
import re
from collections import Counter

from popfn.host.engine.families import (
    convolution,
    float8,
    indexing,
    linear,
    norm_loss,
    pooling,
    printing,
    random,
    sampling,
    statistics,
    updates,
)
from popfn.host.engine.kernels import KERNELS

FAMILIES = [convolution, float8, indexing, linear, norm_loss, pooling, printing, random, sampling, statistics, updates]
# Kinds that a function of another name makes.
MADE_BY = {"modify_random_seed": "split_random_seed"}


def test_each_kind_is_in_one_family_and_in_the_table():
    counts = Counter(kind for family in FAMILIES for kind in family.KERNELS)
    assert set(counts.values()) == {1}
    for family in FAMILIES:
        for kind, kernel in family.KERNELS.items():
            assert KERNELS[kind].value is kernel.value, kind
            assert kernel.writes == (kind.endswith("_") or kind == "adam_var_update"), kind


def test_each_kind_is_tested():
    texts = [p.read_text("utf-8") for p in pathlib.Path(__file__).parent.glob("test_kernels_*.py")]
    words = set(re.findall(r"\w+", "\n".join(text for text in texts if "MADE_BY" not in text)))
    kinds = {MADE_BY.get(kind, kind) for family in FAMILIES for kind in family.KERNELS}
    assert kinds - words == set()
