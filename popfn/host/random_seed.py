"""Seeds: pairs of uint32."""

from typing import Tuple

import numpy as np

MAX_UINT64 = 2**64 - 1


def create_seeds(
    seed: int,
    offset: int = 0,
    batches_per_step: int = 1,
    gradient_accumulation_factor: int = 1,
    replicas: int = 1,
) -> np.ndarray:
    """Draw seeds for all batches and replicas of a run from one number.

    Args:
        seed: The number.
        offset: What is added to it, for instance the number of the run.
        batches_per_step, gradient_accumulation_factor, replicas: The lengths of the leading axes.

    Returns:
        Pairs of uint32, of the shape (batches_per_step, gradient_accumulation_factor, replicas, 2) without the
        leading axes of length 1.

    Raises:
        TypeError: If an argument is no int.
        ValueError: If the number is negative, or an axis has no length.

    Example:
        >>> import popfn.host as popxl
        >>> popxl.create_seeds(42)
        array([3324115917,  383329928], dtype=uint32)
    """
    lengths = batches_per_step, gradient_accumulation_factor, replicas
    for value in (seed, offset) + lengths:
        if not isinstance(value, (int, np.integer)):
            raise TypeError(f"create_seeds: the arguments must be ints, not {value!r}.")
    if min(lengths) < 1:
        raise ValueError(f"create_seeds: the lengths of the axes must be positive, not {lengths}.")
    generator = np.random.default_rng(seed + offset)
    numbers = generator.integers(0, MAX_UINT64, size=lengths, dtype=np.uint64, endpoint=True)
    pairs = np.stack([numbers >> np.uint64(32), numbers & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)
    return pairs.reshape([n for n in lengths if n > 1] + [2])


def uint64_to_two_uint32(num: int) -> Tuple[int, int]:
    """Return the high and the low 32 bits of a number."""
    return num >> 32, num & 0xFFFFFFFF


def two_uint32_to_uint64(a: int, b: int) -> int:
    """Return the number of the high bits `a` and the low bits `b`."""
    return (int(a) << 32) | int(b)
