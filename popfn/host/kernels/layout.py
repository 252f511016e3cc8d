"""Strides: where the elements of a tensor lie in the storage it shares with others."""

from typing import List, Optional, Sequence, Tuple

Shape = Tuple[int, ...]
Layout = Tuple[Tuple[int, ...], int]  # strides and offset of the first element, in bytes


def c_strides(shape: Shape, itemsize: int) -> Tuple[int, ...]:
    """The strides of an array whose last axis varies fastest, without gaps."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


def canonical_strides(shape: Shape, strides: Sequence[int], itemsize: int) -> Tuple[int, ...]:
    """Strides in which axes of length 1 do not differ: two operands of one layout are then one."""
    if 1 not in shape:
        return tuple(strides)
    canonical, expected = list(strides), itemsize
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            canonical[axis] = expected
        expected = canonical[axis] * shape[axis]
    return tuple(canonical)


def is_contiguous(shape: Shape, strides: Sequence[int], itemsize: int) -> bool:
    """Whether these are C strides. Those of axes of length 1 do not matter."""
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1:
            if stride != itemsize:
                return False
            itemsize *= length
    return True


def reshaped(shape: Shape, strides: Sequence[int], new: Shape, itemsize: int) -> Optional[Tuple[int, ...]]:
    """The strides that show the same elements in shape `new`, or None where no strides do."""
    if is_contiguous(shape, strides, itemsize):
        return c_strides(new, itemsize)
    old = [(length, stride) for length, stride in zip(shape, strides) if length != 1]
    result: List[int] = [itemsize] * len(new)
    start, axis = 0, 0
    while start < len(old):
        # The shortest runs of old and new axes that hold equally many elements.
        end, stop, have, want = start + 1, axis, old[start][0], 1
        while have != want:
            if have < want:
                have *= old[end][0]
                end += 1
            else:
                want *= new[stop]
                stop += 1
        for (_, outer), (length, inner) in zip(old[start : end - 1], old[start + 1 : end]):
            if outer != inner * length:
                return None
        stride = old[end - 1][1]
        for k in range(stop - 1, axis - 1, -1):
            result[k] = stride
            stride *= new[k]
        start, axis = end, stop
    return tuple(result)


def permuted(strides: Sequence[int], permutation: Sequence[int]) -> Tuple[int, ...]:
    """The strides after a transposition of axes."""
    return tuple([strides[axis] for axis in permutation])


def sliced(shape: Shape, strides: Sequence[int], slices: Sequence[slice]) -> Layout:
    """The strides after basic slicing, and by how many bytes the first element moves."""
    moved, offset = [], 0
    for length, stride, part in zip(shape, strides, slices):
        start, _, step = part.indices(length)
        offset += start * stride
        moved.append(stride * step)
    return tuple(moved), offset
