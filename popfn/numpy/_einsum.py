"""Einstein's summation: sums of products over axes that share a label."""
from __future__ import annotations

import functools
from typing import Any, Collection, Dict, List, NamedTuple, Sequence, Tuple

from opt_einsum import paths

from .._promotion import convert_to, promoted
from ..trace import prims
from ..trace.array import Array
from ..trace.aval import bool_, float16, float32, int32
from ..trace.errors import ShapeError, message, user_source
from ._create import asarray
from ._elementwise import not_equal

#: An axis: a letter's code point, or for those of `...` -1 for the last one, -2 for the one before it, ...
Labels = Tuple[int, ...]


class Term(NamedTuple):
    """A value and the labels of its axes."""

    x: Array
    labels: Labels


def einsum(subscripts: str, /, *operands: Any) -> Array:
    """The sum of products that `subscripts` describes: "ij,jk->ik" is the product of two matrices.

    A letter names an axis; axes of one letter are of one size, or of size 1. What has no letter in the output is summed
    over; without `->` the output has `...` and then, sorted, the letters that occur once. A letter twice in one operand
    is its diagonal. `...` are axes that broadcast. More than two operands are multiplied in the order that opt_einsum
    finds cheapest. float16 is accumulated in float32 and rounded once; bools are combined with `and` and `or`.

    Raises ShapeError, a ValueError, for subscripts that cannot be read or do not fit the operands.

    >>> import numpy as np
    >>> einsum("bij,bj->bi", np.ones((2, 3, 4)), np.ones((2, 4))).shape
    (2, 3)
    >>> einsum("ii", np.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    if not isinstance(subscripts, str) or not operands:
        raise ShapeError(message(f"einsum takes subscripts and then arrays, got {subscripts!r} and {len(operands)} "
                                 "arrays", 'way out: einsum("ij,jk->ik", x, y)', at=user_source(2)))
    xs = [asarray(x) for x in (promoted(*operands) if len(operands) > 1 else operands)]
    if xs[0].dtype == bool_:
        return not_equal(einsum(subscripts, *(convert_to(x, int32) for x in xs)), 0)
    try:
        inputs, output = parse(subscripts, tuple(x.ndim for x in xs))
        sizes = label_sizes(xs, inputs)
    except ShapeError as e:
        raise ShapeError(message(f'einsum "{subscripts}" of {", ".join(str(x.aval) for x in xs)}: {e}',
                                 at=user_source(2))) from None
    alone = any(inputs[1 - i].count(a) == 0 and a not in output for i in (0, 1) for a in inputs[i]) \
        if len(xs) == 2 else len(xs) > 2
    narrow = alone and xs[0].dtype == float16  # it would be rounded more than once
    terms = [Term(prims.convert(x, float32) if narrow else x, labels) for x, labels in zip(xs, inputs)]
    y = contracted(terms, output, sizes)
    return prims.convert(y, float16) if narrow else y


# ---------------------------------------------------------------------------- reading
@functools.lru_cache(maxsize=1024)
def parse(subscripts: str, ranks: Tuple[int, ...]) -> Tuple[Tuple[Labels, ...], Labels]:
    """The labels of each operand and of the output. Raises ShapeError."""
    text = "".join(subscripts.split())
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ShapeError(f"there are {len(parts)} operands in the subscripts, and {len(ranks)} arrays")
    inputs = tuple(labels_of(part, rank) for part, rank in zip(parts, ranks))
    used = [a for labels in inputs for a in labels]
    dots = tuple(sorted({a for a in used if a < 0}))
    if not arrow:
        return inputs, dots + tuple(sorted(a for a in set(used) if a > 0 and used.count(a) == 1))
    output = labels_of(right, len(right.replace("...", "")) + len(dots) * ("..." in right))
    if "..." not in right and dots:
        raise ShapeError(f"the output leaves out `...`, which stands for {len(dots)} axes: name them to sum over them")
    for a in output:
        if a not in used or output.count(a) > 1:
            raise ShapeError(f"the output's {chr(a)!r} is " + ("there twice" if a in used else "in no operand"))
    return inputs, output


def labels_of(part: str, rank: int) -> Labels:
    """The labels of one operand. Raises ShapeError."""
    head, dots, tail = part.partition("...")
    for letter in head + tail:
        if not (letter.isascii() and letter.isalpha()):
            raise ShapeError(f"{letter!r} is no letter in {part!r}")
    hidden = rank - len(head) - len(tail)
    if hidden < 0 or hidden and not dots:
        raise ShapeError(f"{part!r} names {len(head) + len(tail)} axes of an array of rank {rank}")
    return (*map(ord, head), *range(-hidden, 0), *map(ord, tail))


def label_sizes(xs: Sequence[Array], inputs: Sequence[Labels]) -> Dict[int, int]:
    """The size of each label, 1 only if no axis of it is larger. Raises ShapeError where axes differ."""
    sizes: Dict[int, int] = {}
    for x, labels in zip(xs, inputs):
        own: Dict[int, int] = {}
        for a, n in zip(labels, x.shape):
            if own.setdefault(a, n) != n:
                raise ShapeError(f"the axes {chr(a)!r} of {x.aval} are of sizes {own[a]} and {n}: there is no diagonal")
            known = sizes.get(a, 1)
            if known != n and known != 1 and n != 1:
                what = f"axes {chr(a)!r}" if a > 0 else "axes that `...` stands for"
                raise ShapeError(f"{what} are of sizes {known} and {n}")
            sizes[a] = n if known == 1 else known
    return sizes


# ---------------------------------------------------------------------------- computing
def contracted(terms: List[Term], output: Labels, sizes: Dict[int, int]) -> Array:
    """The product of all terms, summed over what is not in the output, with the output's axes."""
    terms = [simple(term, sizes) for term in terms]
    order: Collection[Tuple[int, ...]] = [tuple(range(len(terms)))]
    if len(terms) > 2:  # ints are labels too, and their sets have the same order in every run
        order = paths.auto([frozenset(t.labels) for t in terms], frozenset(output), sizes)
    for places in order:
        chosen = [terms.pop(i) for i in sorted(places, reverse=True)][::-1]
        while len(chosen) > 1:
            first, second, *chosen = chosen
            kept = frozenset(output).union(*(t.labels for t in terms + chosen))
            chosen.insert(0, product(summed(first, kept.union(second.labels)),
                                     summed(second, kept.union(first.labels)), kept, output))
        terms += chosen
    last = summed(terms[0], frozenset(output))
    return prims.transpose(last.x, tuple(last.labels.index(a) for a in output))


def simple(term: Term, sizes: Dict[int, int]) -> Term:
    """A term without axes that broadcast, and with its diagonals in the place of repeated labels."""
    x, labels = term
    ones = tuple(i for i, (a, n) in enumerate(zip(labels, x.shape)) if n == 1 and sizes[a] != 1)
    x, labels = prims.squeeze(x, ones), tuple(a for i, a in enumerate(labels) if i not in ones)
    for a in dict.fromkeys(labels):
        while labels.count(a) > 1:
            i = labels.index(a)
            j = labels.index(a, i + 1)
            rest = [k for k in range(len(labels)) if k not in (i, j)]
            x = diagonal_of(prims.transpose(x, (*rest, i, j)))
            labels = (*(labels[k] for k in rest), a)
    return Term(x, labels)


def diagonal_of(x: Array) -> Array:
    """The diagonal of the last two axes, which are of one size."""
    *lead, n, _ = x.shape
    flat = prims.reshape(x, (*lead, n * n))
    return prims.slice_(flat, (0,) * flat.ndim, flat.shape, (1,) * len(lead) + (n + 1,))


def summed(term: Term, kept: Collection[int]) -> Term:
    """A term summed over the labels that nothing else has."""
    axes = tuple(i for i, a in enumerate(term.labels) if a not in kept)
    return Term(prims.sum_over(term.x, axes), tuple(a for a in term.labels if a in kept))


def product(x: Term, y: Term, kept: Collection[int], output: Labels) -> Term:
    """The product of two terms, summed over the labels of both that are not kept."""
    both = [a for a in x.labels if a in y.labels]
    x_free, y_free = (tuple(a for a in t.labels if a not in both) for t in (x, y))
    if all(a in kept for a in both) and not (x_free and y_free):  # no sums: one is as many numbers for the other
        large, small = (x, y) if x_free else (y, x)
        moved = prims.transpose(small.x, tuple(small.labels.index(a) for a in large.labels if a in both))
        shape = tuple(n if a in both else 1 for a, n in zip(large.labels, large.x.shape))
        return Term(prims.mul(large.x, prims.reshape(moved, shape)), large.labels)
    if next((a for a in output if a in x_free + y_free), None) in y_free:
        x, y, x_free, y_free = y, x, y_free, x_free
    batch = tuple(a for a in both if a in kept)
    contract = tuple(a for a in both if a not in kept)
    x_contract, y_contract, x_batch, y_batch = (
        tuple(t.labels.index(a) for a in labels) for labels in (contract, batch) for t in (x, y))
    return Term(prims.dot_general(x.x, y.x, x_contract, y_contract, x_batch, y_batch), batch + x_free + y_free)
