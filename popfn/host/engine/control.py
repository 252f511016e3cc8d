"""How the NumPy engine writes down calls, loops and branches: as calls of the functions that graphs become."""

from typing import Any, Dict, Iterable, List, Sequence, Tuple

from popfn.host.engine.aliasing import SAME
from popfn.host.engine.plan import INPUT, LOCAL, Facts, Step, callees, storage_dtype
from popfn.host.engine.program import Operand
from popfn.host.errors import popart_exception


def write_call(s: Any, step: Step, position: int) -> None:
    """A call: copies of what the graph may not modify, the call, and copies back."""
    (called,) = callees(step.op)
    by_reference = step.op.attrs["modified"]
    arguments, back = _arguments(s, step, called, range(len(step.ins)), by_reference, position)
    _write_line(s, called, arguments, _results(s, called))
    _copy_back(s, back)
    for i in s.facts(called).kept.intersection(by_reference):
        s.copy(s.outs[i], s.ins[i])


def write_conditional(s: Any, step: Step, position: int) -> None:
    """A branch: a call of one of two graphs."""
    then_count = step.op.attrs["then_count"]
    parts = range(1, 1 + then_count), range(1 + then_count, len(step.ins))
    for head, called, part in zip((f"if {s.ins[0].name}.item():", "else:"), callees(step.op), parts):
        with s.block(head):
            arguments, _ = _arguments(s, step, called, part, (), -1)
            _write_line(s, called, arguments, _results(s, called))


def write_branches(s: Any, step: Step, position: int) -> None:
    """Branches of which each replica takes one: a call of each that some take, and every replica keeps what is its own.

    The first two operands say which replicas take the one and the other.
    """
    then_count, outs = step.op.attrs["then_count"], s.outs
    parts = range(2, 2 + then_count), range(2 + then_count, len(step.ins))
    then_taking, else_taking = s.ins[:2]
    count = then_taking.shape[0]
    masks = [s.reshaped(else_taking, (count,) + (1,) * (len(out.shape) - 1)) for out in outs]
    others = [s.scratch(out.shape, out.dtype) for out in outs]

    def write(i: int, results: List[Operand]) -> None:
        s.outs = results
        called = callees(step.op)[i]
        arguments, _ = _arguments(s, step, called, parts[i], (), -1)
        _write_line(s, called, arguments, _results(s, called))
        s.outs = outs

    with s.block(f"if {then_taking.name}.any():"):
        write(0, outs)
        with s.block(f"if {else_taking.name}.any():"):
            write(1, others)
            for out, other, mask in zip(outs, others, masks):
                s.line(f"{s.function('copyto')}({out.name}, {other.name}, where={mask.name})")
    with s.block("else:"):
        write(1, outs)


def write_repeat(s: Any, step: Step, position: int) -> None:
    """A loop around a call.

    A value that the graph returns in the storage of its input stays where it is, in that of the output. The others
    alternate between two buffers, the second of which is that of the output, as the last call writes there.
    """
    (called,) = callees(step.op)
    facts, count, by_reference = s.facts(called), step.op.attrs["count"], step.op.attrs["modified"]
    outs = s.outs
    if count == 0:
        for out, x in zip(outs, s.ins):
            s.copy(out, x)
        return
    swapped = [i for i in range(len(outs)) if i not in facts.kept]
    others = list(outs)  # the buffers that are not the outputs
    for i in swapped:
        if count > 1 or i in facts.written:
            others[i] = s.scratch(outs[i].shape, outs[i].dtype)
    arguments, back = _arguments(s, step, called, range(len(step.ins)), by_reference, -1)
    refill: List[Tuple[Operand, Operand]] = []  # what each call gets a new copy of
    for i in range(len(outs), len(step.ins)):
        if i in facts.written and i not in by_reference:
            copied, x = s.scratch(s.ins[i].shape, s.ins[i].dtype), s.ins[i]
            if any(step.ins[i].root.uses is root.uses for root in step.modified):
                x = s.compact(x)  # the loop itself changes what all calls are to get
            refill.append((copied, x))
            arguments[i] = copied
    extra = _results(s, called)[len(outs) :]

    def write(sources: Sequence[Operand], targets: Sequence[Operand]) -> None:
        for copied, x in refill:
            s.copy(copied, x)
        for i in swapped:
            arguments[i] = sources[i]
        _write_line(s, called, arguments, list(targets) + extra)

    is_odd = count % 2 == 1
    first = list(arguments)
    for i in swapped:
        if i in facts.written:
            first[i] = others[i] if is_odd else outs[i]
            s.copy(first[i], s.ins[i])
    write(first, outs if is_odd else others)
    if not is_odd:
        write(others, outs)
    if count > 2:
        with s.block(f"for _ in range({(count - 1) // 2}):"):
            write(outs, others)
            write(others, outs)
    _copy_back(s, back)


def _arguments(
    s: Any,
    step: Step,
    called: Any,
    part: Iterable[int],
    by_reference: Sequence[int],
    position: int,
) -> Tuple[List[Operand], List[Tuple[Operand, Operand]]]:
    """The arguments for the inputs of a graph, and the pairs of operands to copy after the call.

    Args:
        s: The site.
        step: The step.
        called: The graph.
        part: The operands of the step that the graph gets.
        by_reference: The inputs that it gets by reference.
        position: That of the step, if operands which die there may be overwritten.

    A loop makes the copies for inputs that the graph modifies: they need one for each call.
    """
    facts: Facts = s.facts(called)
    arguments: List[Operand] = []
    back: List[Tuple[Operand, Operand]] = []
    is_loop = step.op.kind == "repeat"
    part = list(part)
    overlaps: Dict[Tuple[int, int], str] = s.writer.program.overlaps.get(step.op, {})
    _check_overlaps(s, step, called, overlaps)
    for i, k in enumerate(part):
        place, x = step.ins[k], s.ins[k]
        root = place.root
        if i in by_reference:
            first = next((k for k in range(i) if overlaps.get((k, i)) == SAME), None)
            given = arguments[first] if first is not None else x if x.contiguous else s.compact(x)
            if given is not x and i in facts.written:
                back.append((x, given))
            x = given
        elif i in facts.kept and i < len(s.outs):
            s.copy(s.outs[i], x)
            x = s.outs[i]
        elif i in facts.written and not is_loop:
            dies = root.kind == LOCAL and root.home is None and not root.is_output and root.last == position
            if not (dies and place.is_whole and sum(y.root is root for y in step.ins) == 1):
                x = s.compact(x)
        elif i not in facts.written and (not x.contiguous or any(root.uses is o.uses for o in step.modified)):
            x = s.compact(x)
        arguments.append(x)
    return arguments, back


def _results(s: Any, called: Any) -> List[Operand]:
    """Where the outputs of a graph go. The op that calls it may not have all of them."""
    missing = called.outputs[len(s.outs) :]
    return [*s.outs, *[s.scratch(t.shape, storage_dtype(t.dtype)) for t in missing]]


def _write_line(s: Any, called: Any, arguments: Sequence[Operand], outs: Sequence[Operand]) -> None:
    facts: Facts = s.facts(called)
    names = [x.name for x in arguments] + [x.name for i, x in enumerate(outs) if i not in facts.kept]
    s.line("{}({})".format(s.function_of(called), ", ".join(names + [s.stream(k) for k in facts.streams])))


def _copy_back(s: Any, back: Iterable[Tuple[Operand, Operand]]) -> None:
    for x, copied in back:
        s.copy(x, copied)


def _check_overlaps(s: Any, step: Step, called: Any, overlaps: Dict[Tuple[int, int], str]) -> None:
    """Refuse inputs by reference that share elements, one being written, where copies would stand for them."""
    written = s.facts(called).written
    for (i, k), how in sorted(overlaps.items()):
        roots = step.ins[i].root, step.ins[k].root
        is_direct = s.ins[i].contiguous and s.ins[k].contiguous
        is_direct = is_direct and (roots[0] is roots[1] or all(root.kind == INPUT for root in roots))
        if how != SAME and not is_direct and (i in written or k in written):
            raise popart_exception(
                f"{step.op.kind}: the inputs {i} and {k} of {called!r} are different views of one storage, "
                f"{step.ins[i].label} and {step.ins[k].label}, passed by reference, and one of them is written. "
                "Pass the storage once."
            )


WRITERS: Dict[str, Any] = {
    "call": write_call,
    "repeat": write_repeat,
    "conditional": write_conditional,
    "branches": write_branches,
}
