"""Replica groupings: which replicas share a value, or take part in a collective together."""

import math
from typing import Any, List, Optional, Sequence, Tuple


class ReplicaGrouping:
    """A division of the replicas into groups of equal size.

    `Ir.replica_grouping` and `Ir.replica_grouping_from_assignments` make groupings; the constructor raises
    RuntimeError. Equality compares the Ir and the assignment; with anything else it is a TypeError.

    Example:
        >>> import popfn.host as popxl
        >>> popxl.Ir(replication=4).replica_grouping(stride=2).assignment
        [0, 1, 0, 1]
    """

    __slots__ = ("_ir", "_assignment")
    _ir: Any
    _assignment: Tuple[int, ...]  # the group of each replica

    def __init__(self) -> None:
        raise RuntimeError(
            "a ReplicaGrouping cannot be constructed: use ir.replica_grouping or "
            "ir.replica_grouping_from_assignments."
        )

    @classmethod
    def _make(cls, ir: Any, assignment: Sequence[int]) -> "ReplicaGrouping":
        grouping = object.__new__(cls)
        grouping._ir = ir
        grouping._assignment = tuple(assignment)
        return grouping

    @classmethod
    def _strided(cls, ir: Any, stride: int, group_size: Optional[int]) -> "ReplicaGrouping":
        replicas = ir.replication_factor
        stride = _as_int("stride", stride)
        if not 0 < stride <= replicas or replicas % stride:
            raise ValueError(
                f"replica_grouping: the stride must divide the number of replicas, {replicas}, not {stride}."
            )
        group_size = replicas // stride if group_size is None else _as_int("group_size", group_size)
        if not 0 < group_size <= replicas:
            raise ValueError(
                f"replica_grouping: group_size must be from 1 to the number of replicas, {replicas}, not "
                f"{group_size}."
            )
        assignment = _walk(replicas, stride, group_size)
        if assignment is None:
            raise ValueError(
                f"replica_grouping: {replicas} replicas cannot be divided into groups of {group_size} at the "
                f"stride {stride}."
            )
        return cls._make(ir, assignment)

    @classmethod
    def _assigned(cls, ir: Any, assignment: Sequence[int]) -> "ReplicaGrouping":
        function, replicas = "replica_grouping_from_assignments", ir.replication_factor
        if len(assignment) != replicas:
            raise ValueError(
                f"{function}: there are {len(assignment)} entries for {replicas} replicas: {assignment!r}."
            )
        groups = list(dict.fromkeys(assignment))
        if groups != list(range(len(groups))):
            raise ValueError(
                f"{function}: the groups must be numbered from 0 in the order of their first replica, unlike "
                f"in {assignment!r}."
            )
        sizes = [list(assignment).count(group) for group in groups]
        if len(set(sizes)) > 1:
            raise ValueError(f"{function}: the groups of {assignment!r} are not of equal size: {sizes}.")
        if sizes[0] == 1:
            raise ValueError(
                f"{function}: PopXL takes no groups of one replica here; use ir.replica_grouping(group_size=1)."
            )
        return cls._make(ir, assignment)

    @property
    def assignment(self) -> List[int]:
        """The group of each replica."""
        return list(self._assignment)

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return max(self._assignment) + 1

    @property
    def group_size(self) -> int:
        """The number of replicas in each group."""
        return len(self._assignment) // self.num_groups

    @property
    def stride(self) -> int:
        """The distance of neighbours in a group; NotImplementedError if there is not one for all groups."""
        stride = self._stride()
        if stride is None:
            raise NotImplementedError(f"{self!r} has no single stride.")
        return stride

    @property
    def is_const(self) -> bool:
        """Whether a single stride and group size describe the grouping."""
        return self._stride() is not None

    def transpose(self) -> "ReplicaGrouping":
        """Return the grouping of the first members of all groups, the second members, and so on."""
        seen = [0] * self.num_groups
        places = []
        for group in self._assignment:
            places.append(seen[group])
            seen[group] += 1
        return self._make(self._ir, places)

    # How the data of a grouping that is not const is stored: by a const grouping that refines it.

    @property
    def const_rg(self) -> "ReplicaGrouping":
        """The const grouping whose groups each lie in one group of this one: itself, if it is const."""
        return self if self.is_const else self._make(self._ir, self._refined())

    @property
    def to_device_map(self) -> Optional[List[int]]:
        """For each group of `const_rg`, the group of this grouping that it lies in; None if this is const."""
        if self.is_const:
            return None
        return [self._assignment[members[0]] for members in self.const_rg._members()]

    @property
    def to_host_map(self) -> Optional[List[int]]:
        """For each group, the first group of `const_rg` that lies in it; None if this is const."""
        if self.is_const:
            return None
        device_map = self.to_device_map or []
        return [device_map.index(group) for group in range(self.num_groups)]

    def _members(self) -> List[Tuple[int, ...]]:
        """The replicas of each group."""
        groups: List[List[int]] = [[] for _ in range(self.num_groups)]
        for replica, group in enumerate(self._assignment):
            groups[group].append(replica)
        return [tuple(group) for group in groups]

    def _stride(self) -> Optional[int]:
        members = self._members()[0]
        stride = members[1] - members[0] if len(members) > 1 else 1
        return stride if _walk(len(self._assignment), stride, len(members)) == self.assignment else None

    def _refined(self) -> List[int]:
        """Cut the groups where the gap is wider than the smallest; equal pieces of that stride remain."""
        members = self._members()
        gaps = [[b - a for a, b in zip(group, group[1:])] for group in members]
        stride = min(gap for group in gaps for gap in group)
        size = 0
        for group in gaps:
            run = 1
            for gap in group:
                if gap == stride:
                    run += 1
                else:
                    size, run = math.gcd(size, run), 1
            size = math.gcd(size, run)
        replicas = len(self._assignment)
        found = _walk(replicas, stride, size)
        if found is not None and len(set(zip(found, self._assignment))) == max(found) + 1:
            return found
        return list(range(replicas))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, ReplicaGrouping):
            raise TypeError(f"a ReplicaGrouping can be compared with another one only, not with {other!r}.")
        return self._ir is other._ir and self._assignment == other._assignment

    def __hash__(self) -> int:
        return hash(self._assignment)

    def __repr__(self) -> str:
        return f"ReplicaGrouping({self.assignment})"


def _walk(replicas: int, stride: int, group_size: int) -> Optional[List[int]]:
    """The assignment of groups of `group_size` members at a stride, or None if they do not fill up."""
    if group_size == 1:
        stride = 1
    block = stride * group_size
    if replicas % block:
        return None
    return [replica // block * stride + replica % stride for replica in range(replicas)]


def _as_int(name: str, value: Any) -> int:
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"replica_grouping: {name} must be an int, not {value!r}.") from None
