"""Program: a function lowered to PopXL, with the map from the leaves of its arguments to streams and variables."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from ..trace import tree
from ..trace.aval import DEVICE, Aval, float64
from ..trace.errors import InputError, LoweringError, message, user_source
from ..trace.jaxpr import Jaxpr, eqn_has_float64
from ..trace.tree import TreeDef
from .build import Built, Signature, build, identifier, unique
from .feed import structure_note
from .instances import Instance
from .target import Target, find_target
from .text import program_text


class Argument(NamedTuple):
    """An argument of a program: its name and structure, its leaves' paths as code, and where they begin."""

    name: str
    treedef: TreeDef
    paths: Tuple[str, ...]
    start: int

    @property
    def leaves(self) -> range:
        """The numbers of its leaves among those of all arguments."""
        return range(self.start, self.start + len(self.paths))


class Program:
    """A function lowered to PopXL. `pf.lower` makes it, `pf.Session` runs it.

    Attributes:
        name: The function's name.
        jaxpr: What was lowered. Its inputs are the leaves of all arguments, its outputs the leaves of the result.
        arguments: All arguments in order, the state included.
        state: The numbers of the arguments that live on the device.
        out_tree: The structure of what a run returns: of the function's result without the new state.
        target: Where it was lowered to.
        io_tiles: How many tiles of each IPU are set apart for input and output.
        replica_state: Whether the state can be read from each replica.

    Under a launcher (see `pf.distributed`), a program with a mesh is one of all processes. Its types are those of whole
    arrays; a session takes and gives what the replicas of its process hold of them, of the types `local_in_avals` and
    `local_out_avals`.

    >>> import popfn as pf
    >>> pf.lower(lambda w, x: (w - x, w * x), pf.spec(3), pf.spec(3), state=0, target="host")
    Program(<lambda>(x: f32[3]) -> f32[3]; state w: f32[3]; host)
    """

    def __init__(self, name: str, jaxpr: Jaxpr, arguments: Sequence[Argument], state: Tuple[int, ...],
                 out_tree: TreeDef, target: Target, io_tiles: int = 0, replica_state: bool = False) -> None:
        self.name = name
        self.jaxpr = jaxpr
        self.arguments = tuple(arguments)
        self.state = state
        self.out_tree = out_tree
        self.target = target
        self.io_tiles = io_tiles
        self.replica_state = replica_state
        self.inputs = tuple(a for i, a in enumerate(self.arguments) if i not in state)
        self.state_leaves = tuple(leaf for i in state for leaf in self.arguments[i].leaves)
        self.out_paths = tuple(tree.paths(out_tree, "out"))
        self.paths = tuple(path for a in self.arguments for path in a.paths)
        taken: Set[str] = set()
        self.signature = Signature(
            tuple(unique(identifier(path) or "arg", taken) for path in self.paths), self.state_leaves,
            tuple(unique(identifier(path), taken) for path in self.out_paths))
        self.built = build(jaxpr, self.signature, target, io_tiles, replica_state)
        self._unused: Optional[Built] = self.built

    # ------------------------------------------------------------------ types
    @property
    def in_avals(self) -> Tuple[Aval, ...]:
        """The types of the leaves of all arguments."""
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> Tuple[Aval, ...]:
        """The types of the leaves of what a run returns."""
        return self.jaxpr.out_avals[len(self.state_leaves):]

    @property
    def instance(self) -> Optional[Instance]:
        """Which of the processes that run the program together this one is; None if it runs alone."""
        return self.built.local.instance

    @property
    def local_in_avals(self) -> Tuple[Aval, ...]:
        """The types of what the replicas of this process hold of the arguments: `in_avals` if it runs alone."""
        return tuple(map(self.built.local.aval, self.in_avals, self.built.in_specs))

    @property
    def local_out_avals(self) -> Tuple[Aval, ...]:
        """The types of what the replicas of this process hold of what a run returns."""
        return tuple(map(self.built.local.aval, self.out_avals, self.built.out_specs[len(self.state_leaves):]))

    # ------------------------------------------------------------------ PopXL
    @property
    def ir(self) -> Any:
        """The PopXL Ir. The first session of the program takes it over, as in PopXL; later ones build it anew."""
        return self.built.ir

    @property
    def loads(self) -> Dict[str, Any]:
        """The input stream of each leaf that a run takes; those that nothing reads or that are empty have none."""
        return by_path(self.paths, [s and s.stream for s in self.built.loads])

    @property
    def variables(self) -> Dict[str, Any]:
        """The variable of each leaf of the state (`params['w']`) that the program reads or changes.

        A leaf in remote memory has a tuple of variables, one for each entry of its buffer.
        """
        return by_path([self.paths[i] for i in self.state_leaves], [
            s and (s.variables[0] if s.aval.memory == DEVICE else s.variables) for s in self.built.variables])

    @property
    def stores(self) -> Dict[str, Any]:
        """The output stream of each leaf that a run returns (`out`, `out[0]`); those that are empty have none."""
        return by_path(self.out_paths, [s and s.stream for s in self.built.stores])

    def take(self) -> Built:
        """An Ir that no session has yet: a session owns its variables' values on the host."""
        built, self._unused = self._unused, None
        if built is None:
            built = build(self.jaxpr, self.signature, self.target, self.io_tiles, self.replica_state)
            if built.local != self.built.local:
                raise InputError(message(
                    f"{self.name} was lowered for {self.instance or 'one process'}, but this process is "
                    f"{built.local.instance or 'no longer one that a launcher started'}",
                    "way out: lower it again", at=user_source(2)))
        return built

    def as_text(self) -> str:
        """The program as a Python file that imports only popxl and numpy.

        It is written from the calls that the lowering made. Its `build()` makes the same Ir, its `main()` runs it.
        Raises LoweringError if a lower rule computed with something that it did not get from `px`.

        >>> import popfn as pf
        >>> text = pf.lower(lambda x, y: x * y + 1, pf.spec(3), pf.spec(3)).as_text()
        >>> [line.strip() for line in text.splitlines() if "out = " in line]
        ['out = x * y + 1.0']
        """
        return program_text(self.name, self.built, self.signature, self.jaxpr)

    def __repr__(self) -> str:
        def types(leaves: Sequence[int]) -> str:
            return ", ".join(f"{self.paths[i]}: {self.in_avals[i]}" for i in leaves)
        fed = [leaf for a in self.inputs for leaf in a.leaves]
        kept = f"; state {types(self.state_leaves)}" if self.state_leaves else ""
        out = ", ".join(map(str, self.out_avals))
        instance = f"; {self.instance}" if self.instance else ""
        return f"Program({self.name}({types(fed)}) -> {out or None}{kept}; {self.target.name}{instance})"


def build_program(jaxpr: Jaxpr, arguments: Sequence[Tuple[str, TreeDef]], state: Sequence[int], out_tree: TreeDef,
                  target: str = "auto", name: str = "", io_tiles: int = 0, replica_state: bool = False) -> Program:
    """Lower a jaxpr whose inputs are the leaves of the arguments and whose outputs are those of `out_tree`.

    The arguments numbered by `state` live on the device: the result begins with their new values. Raises InputError if
    it does not, LoweringError if a rule fails or for float64, DeviceError if the target is not there.
    """
    made: List[Argument] = []
    start = 0
    for arg_name, treedef in arguments:
        made.append(Argument(arg_name, treedef, tuple(tree.paths(treedef, arg_name)), start))
        start += treedef.num_leaves
    if (start, out_tree.num_leaves) != (len(jaxpr.inputs), len(jaxpr.outputs)):
        raise InputError(message(
            f"{start} leaves of arguments and {out_tree.num_leaves} of the result for a jaxpr with {len(jaxpr.inputs)} "
            f"inputs and {len(jaxpr.outputs)} outputs", at=user_source(2)))
    if len(set(state)) != len(state):
        raise InputError(message(f"state={tuple(state)} names an argument twice", at=user_source(2)))
    name = name or jaxpr.name or "program"
    if jaxpr.has_float64:
        refuse_float64(name, jaxpr, [path for a in made for path in a.paths])
    rest = without_state(name, jaxpr, [made[i] for i in state], out_tree)
    return Program(name, jaxpr, made, tuple(state), rest, find_target(target), io_tiles, replica_state)


def refuse_float64(name: str, jaxpr: Jaxpr, paths: Sequence[str]) -> NoReturn:
    """Raise LoweringError that names what is float64: an argument, or the first equation and its line."""
    at, what = user_source(3), "a constant"
    wide = [f"{path}, {v.aval}" for path, v in zip(paths, jaxpr.inputs) if v.aval.dtype == float64]
    if wide:
        what = f"argument {wide[0]}"
    else:
        inner: Optional[Jaxpr] = jaxpr
        while inner is not None:  # down to where it begins
            eqn = next(filter(eqn_has_float64, inner.eqns), None)
            if eqn is None:
                break
            avals = [a.aval for a in (*eqn.outputs, *eqn.inputs) if a.aval.dtype == float64]
            what, at = ", ".join([eqn.primitive.name, *map(str, avals[:1])]), eqn.source or at
            inner = None if avals else next((j for j in getattr(eqn.primitive, "jaxprs", ()) if j.has_float64), None)
    raise LoweringError(message(f"{name}: float64 is for the host, an IPU has no such type", f"seen: {what}",
                                "way out: x.astype(np.float32) before it is lowered; checks in float64 run eagerly or "
                                "under pf.jit", at=at))


def by_path(paths: Sequence[str], handles: Sequence[Any]) -> Dict[str, Any]:
    """The streams or variables that there are, by the paths of their leaves."""
    return {path: handle for path, handle in zip(paths, handles) if handle is not None}


def without_state(name: str, jaxpr: Jaxpr, state: Sequence[Argument], out_tree: TreeDef) -> TreeDef:
    """The structure of a result without the new state that it begins with. Raises InputError if it does not."""
    if not state:
        return out_tree
    names = ", ".join(a.name for a in state)
    if len(state) == 1 and out_tree == state[0].treedef:
        new, rest = [out_tree], tree.structure(None)
    elif out_tree.type is tuple and len(out_tree.children()) >= len(state):
        new, others = out_tree.children()[:len(state)], out_tree.children()[len(state):]
        rest = others[0] if len(others) == 1 else tree.structure(
            tuple(skeleton(t) for t in others) if others else None)
    else:
        got = repr(tree.unflatten(out_tree, jaxpr.out_avals))
        raise InputError(message(
            f"{name} keeps {names} on the device, so it has to return a tuple that begins with the new {names}",
            f"it returns: {got if len(got) <= 300 else got[:300] + ' ...'}",
            f"way out: return {names}, result", at=user_source(2)))
    out = iter(jaxpr.out_avals)
    for a, treedef in zip(state, new):
        if treedef != a.treedef:
            raise InputError(message(
                f"{name} returns a new {a.name} of another structure than the {a.name} that it takes",
                structure_note(a.name, a.treedef, treedef), at=user_source(2)))
        for path, leaf in zip(a.paths, a.leaves):
            before, after = jaxpr.in_avals[leaf], next(out)
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                raise InputError(message(
                    f"{name} takes {path} as {before.strong} and returns the new one as {after.strong}",
                    "what lives on the device keeps its type",
                    f"way out: .astype(np.{before.dtype.name})" if before.shape == after.shape else None,
                    at=user_source(2)))
    return rest


def skeleton(treedef: TreeDef) -> Any:
    """A tree of a structure."""
    return tree.unflatten(treedef, range(treedef.num_leaves))
