"""From a jaxpr to a PopXL Ir: one graph per jaxpr, in the order of its equations.

PopXL has no tensors without elements. A value of size 0 gets none: equations that give nothing else are left out, and
those that take one are replaced by what they come to (`Builder.without_empty`).
"""
from __future__ import annotations

import inspect
import itertools
import keyword
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from ..trace.aval import BY_NAME, FLOAT8, SHORT
from ..trace.errors import InputError, LoweringError, located, message, user_source
from ..trace.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from ..trace.primitive import Primitive, eval_results
from ..trace.prims.effects import Print
from ..trace.prims.shaping import Broadcast
from ..trace.prims.structural import Concat, Pad
from ..transforms.bodies import GraphInput, Subgraph
from .record import Body, Recording
from .target import Target


class Signature(NamedTuple):
    """What the inputs and outputs of a program's jaxpr are called, and which of them are its state.

    The jaxpr's first outputs are the new values of the inputs that `state` numbers; `results` names the others.
    """

    inputs: Tuple[str, ...]
    state: Tuple[int, ...]
    results: Tuple[str, ...]


class Built(NamedTuple):
    """An Ir and what goes in and out of it; None stands where nothing is to be transferred.

    `loads` has a stream for each input of the jaxpr that is not state and that something reads, `variables` one for
    each leaf of the state that changes or is read, `stores` a stream for each result that is not empty.
    """

    ir: Any
    loads: Tuple[Any, ...]
    variables: Tuple[Any, ...]
    stores: Tuple[Any, ...]
    main: Body


def build(jaxpr: Jaxpr, signature: Signature, target: Target) -> Built:
    """The Ir of a jaxpr. Raises LoweringError, with the user's line, if a lower rule fails or breaks its contract."""
    if any(c is None for c in jaxpr.constants):
        raise InputError(message("this jaxpr was parsed without its constants",
                                 "way out: parse_jaxpr(text, constants)", at=user_source(2)))
    builder = Builder(target)
    px = builder.px
    ir = builder.ir
    state = signature.state
    new_state, results = jaxpr.outputs[:len(state)], jaxpr.outputs[len(state):]
    on_device = set(state)
    read = variables_read(jaxpr)
    read.update(results)
    read.update(new for i, new in zip(state, new_state) if new is not jaxpr.inputs[i])
    with np.errstate(all="ignore"), ir.main_graph, target.module.in_sequence():
        loads: List[Any] = [None] * len(jaxpr.inputs)
        for i, v in enumerate(jaxpr.inputs):
            if v in read and v.aval.size and i not in on_device:
                loads[i] = px.h2d_stream(v.aval.shape, builder.dtype(v.aval.dtype), name=signature.inputs[i])
        stores = [px.d2h_stream(a.aval.shape, builder.dtype(a.aval.dtype), name=name) if a.aval.size else None
                  for a, name in zip(results, signature.results)]
        env: Dict[Atom, Any] = {}
        variables: List[Any] = []
        for i, new in zip(state, new_state):
            old = jaxpr.inputs[i]
            variable = None
            if old.aval.size and (old in read or new is not old):
                start = np.zeros(old.aval.shape, builder.dtype(old.aval.dtype).as_numpy())
                variable = px.variable(start, builder.dtype(old.aval.dtype), name=signature.inputs[i])
            variables.append(variable)
            env[old] = variable
        env.update((v, px.ops.host_load(stream)) for v, stream in zip(jaxpr.inputs, loads) if stream is not None)
        builder.equations(jaxpr, env)
        for a, stream in zip(results, stores):
            if stream is not None:
                px.ops.host_store(stream, builder.tensor(a, jaxpr, env))
        news = [(v, builder.tensor(new, jaxpr, env)) for v, new in zip(variables, new_state) if v is not None]
        updates = [(v, new) for v, new in news if new is not v]
        for v, new in values_before(px, updates):
            px.ops.var_updates.copy_var_update_(v, new)
        if not updates and all(stream is None for stream in stores):
            # PopXL makes no session of an Ir without ops.
            px.ops.host_store(px.d2h_stream((), px.bool, name="nothing"), px.constant(False, px.bool))
    return Built(ir, tuple(loads), tuple(variables), tuple(stores), builder.recording.main)


def variables_read(jaxpr: Jaxpr) -> Set[Atom]:
    """What the equations take that have something to compute."""
    return {a for eqn in jaxpr.eqns if does_something(eqn) for a in eqn.inputs}


def does_something(eqn: Eqn) -> bool:
    """Whether an equation has an effect or a result with elements."""
    return any(v.aval.size for v in eqn.outputs) or eqn.primitive.has_effect


def values_before(px: Any, updates: Sequence[Tuple[Any, Any]]) -> Iterator[Tuple[Any, Any]]:
    """The updates `(variable, new value)`, with a copy where the new value is a variable that is updated too."""
    written = {id(v) for v, _ in updates}
    copies = {id(new): px.ops.identity(new) for _, new in updates if id(new) in written}
    for v, new in updates:
        yield v, copies.get(id(new), new)


class Builder:
    """Builds the graphs of one Ir."""

    def __init__(self, target: Target) -> None:
        self.module = target.module
        self.recording = Recording(target.module)
        self.px = self.recording.px
        self.ir = target.module.Ir()
        self.create_graph = self.recording.wrap("create_graph", self.new_graph)
        self.graphs: Dict[Subgraph, Any] = {}
        self.graph_names: Dict[int, str] = {}  # by the graph's id
        self.names: Set[str] = set()
        self._dtypes: Dict[np.dtype, Any] = {}

    def dtype(self, dtype: np.dtype) -> Any:
        """PopXL's dtype for a NumPy dtype."""
        found = self._dtypes.get(dtype)
        if found is None:
            name = SHORT[dtype].replace("f8", "float8") if dtype in FLOAT8 else dtype.name
            found = self._dtypes[dtype] = getattr(self.px, name)
        return found

    def constant(self, value: np.ndarray) -> Any:
        """A constant of the current graph."""
        dtype = self.dtype(value.dtype)
        if value.dtype in FLOAT8:
            return self.px.constant(value.view(dtype.as_numpy()), dtype)
        return self.px.constant(value if value.ndim else short_scalar(value), dtype)

    def tensor(self, a: Atom, jaxpr: Jaxpr, env: Dict[Atom, Any]) -> Any:
        """The tensor of an atom that is not empty, made now if it is a constant."""
        found = env.get(a)
        if found is None:
            if isinstance(a, Literal):
                return self.constant(a.value)
            found = env[a] = self.constant(jaxpr.constants[jaxpr.constvars.index(a)])  # type: ignore[arg-type]
        return found

    # ------------------------------------------------------------------ equations
    def equations(self, jaxpr: Jaxpr, env: Dict[Atom, Any]) -> None:
        """Lower all equations in order, keeping their results in `env`."""
        recording, px = self.recording, self.px
        for eqn in jaxpr.eqns:
            results = [v for v in eqn.outputs if v.aval.size]
            if not does_something(eqn):
                continue
            recording.source = eqn.source
            primitive: Any = eqn.primitive
            atoms: Sequence[Atom] = eqn.inputs
            jaxprs = getattr(primitive, "jaxprs", None)
            if not all(a.aval.size for a in atoms):
                if jaxprs is None and not any(a.aval.size for a in atoms):
                    values = eval_results(primitive, [np.zeros(a.aval.shape, a.aval.dtype) for a in atoms])
                    env.update((v, self.constant(x)) for v, x in zip(eqn.outputs, values) if x.size)
                    continue
                primitive, atoms = without_empty(eqn)
            operands = [env[a] if a in env else self.tensor(a, jaxpr, env) for a in atoms]
            try:
                if jaxprs is None:
                    got = primitive.lower(px, *operands)
                else:
                    graphs = tuple([self.graph(g, operands) for g in subgraphs(eqn)])
                    got = primitive.lower(px, *operands, graphs=graphs)
            except LoweringError as e:
                raise located(e, eqn.source) from e.__cause__
            except Exception as e:
                raise LoweringError(message(
                    f"the lower rule of {primitive.name} failed: {type(e).__name__}: {e}", call_note(primitive, atoms),
                    at=eqn.source)) from e
            if eqn.primitive.has_effect and jaxprs is None:  # it gives back what the program goes on with
                env.update((a, t) for a, t in zip(atoms, got) if isinstance(a, Var))
                continue
            env.update(zip(results, self.checked(eqn, atoms, results, got)))
        recording.source = None

    def checked(self, eqn: Eqn, atoms: Sequence[Atom], results: Sequence[Var], got: Any) -> Sequence[Any]:
        """The tensors that a rule returned. Raises LoweringError if they are not of the types of its results."""
        tensors = (got,) if not isinstance(got, (tuple, list)) else got
        if len(tensors) == len(results):
            for t, v in zip(tensors, results):
                if getattr(t, "shape", None) != v.aval.shape or t.dtype != self.dtype(v.aval.dtype):
                    break
            else:
                return tensors
        raise LoweringError(message(
            f"the lower rule of {eqn.primitive.name} gives {', '.join(map(type_text, tensors)) or 'nothing'}, "
            f"but the result is {', '.join(str(v.aval.strong) for v in results)}",
            call_note(eqn.primitive, atoms), "the fault is in the rule, not in the program", at=eqn.source))

    # ------------------------------------------------------------------ sub-graphs
    def graph(self, subgraph: Subgraph, operands: Sequence[Any]) -> Any:
        """A graph, made where it is first called, in the main graph. `operands` are those of its call."""
        found = self.graphs.get(subgraph)
        if found is None:
            nested = dict.fromkeys(g for eqn in subgraph.jaxpr.eqns if does_something(eqn)
                                   for g in subgraphs(eqn))
            called = [self.graph(g, ()) for g in nested]
            inputs = subgraph.inputs()
            stand_in = type(subgraph) is Subgraph and fits(operands, inputs)  # others take more, in another order
            like = list(operands) if stand_in and self.recording.body is self.recording.main else \
                [self.px.TensorSpec(i.shape, self.dtype(i.dtype)) for i in inputs]
            body = Body(unique(identifier(subgraph.jaxpr.name) or "graph", self.names))
            taken: Set[str] = set()
            body.param_names = tuple([unique(identifier(i.name), taken) for i in inputs] + [
                f"{self.graph_names[id(g)]}_graph" for g in called])
            body.by_reference = tuple([i.by_reference for i in inputs] + [False] * len(called))
            found = self.graphs[subgraph] = self.create_graph(body, subgraph, *like, *called)
            self.graph_names[id(found)] = body.name
        return found

    def new_graph(self, body: Body, subgraph: Subgraph, *args: Any) -> Any:
        """`ir.create_graph` of a function that lowers the equations of a sub-graph."""
        jaxpr = subgraph.jaxpr

        def equations(env: Dict[Atom, Any]) -> List[Any]:
            self.equations(jaxpr, env)
            return [self.tensor(a, jaxpr, env) for a in jaxpr.outputs if a.aval.size]

        def lowered(*params: Any) -> Tuple[Any, ...]:
            with self.recording.inside(body):
                body.params = params
                body.outputs = self.own(subgraph.emit(self.px, equations, params[:len(subgraph.inputs())]))
            return body.outputs

        lowered.__name__ = lowered.__qualname__ = body.name
        lowered.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                              annotation=self.module.TensorByRef if by_reference else inspect.Parameter.empty)
            for name, by_reference in zip(body.param_names, body.by_reference)])
        return self.ir.create_graph(lowered, *args)

    def own(self, tensors: Sequence[Any]) -> Tuple[Any, ...]:
        """The outputs of a graph, each a tensor of its own that the graph makes or takes."""
        constants = self.recording.body.constants.values()
        outputs: List[Any] = []
        for t in tensors:
            shared = any(t is u for u in outputs) or any(t is c for c in constants)
            outputs.append(self.px.ops.identity(t) if shared else t)
        return tuple(outputs)


# ---------------------------------------------------------------------------- small things
def subgraphs(eqn: Eqn) -> Sequence[Subgraph]:
    """The graphs that an equation calls, of the jaxprs that its primitive holds or made of them."""
    primitive: Any = eqn.primitive
    if not hasattr(type(primitive), "subgraphs"):
        return [Subgraph(j) for j in getattr(primitive, "jaxprs", ())]
    try:
        found: Sequence[Subgraph] = primitive.subgraphs
    except LoweringError as e:
        raise located(e, eqn.source) from None
    return found


def without_empty(eqn: Eqn) -> Tuple[Primitive, Sequence[Atom]]:
    """A primitive and operands that give the same result, none of them without elements.

    Raises LoweringError if it is not known what the primitive makes of an empty operand beside others.
    """
    full = [a for a in eqn.inputs if a.aval.size]
    # A graph has no empty inputs either, and there is nothing to print of them.
    if isinstance(eqn.primitive, (Concat, Print)) or hasattr(eqn.primitive, "jaxprs"):
        return eqn.primitive, full
    if isinstance(eqn.primitive, Pad):  # there is nothing but the padding
        return Broadcast(eqn.outputs[0].aval.shape), full
    raise LoweringError(message(
        f"{eqn.primitive.name} takes an operand without elements, which PopXL does not have",
        call_note(eqn.primitive, eqn.inputs), "way out: leave the empty array out of this operation", at=eqn.source))


def call_note(primitive: Primitive, atoms: Sequence[Atom]) -> str:
    """For an error: the call of a rule."""
    return f"the rule: {type(primitive).__name__}.lower of {', '.join(str(a.aval.strong) for a in atoms) or 'nothing'}"


def type_text(t: Any) -> str:
    """The type of what a rule returned, written like an aval."""
    if not hasattr(t, "shape") or not hasattr(t, "dtype"):
        return f"a {type(t).__name__}"
    name = str(getattr(t.dtype, "name", t.dtype))
    short = SHORT[BY_NAME[name]] if name in BY_NAME else name
    return f"{short}[{','.join(map(str, t.shape))}]"


def short_scalar(value: np.ndarray) -> Any:
    """A scalar as the shortest Python number that stands for it: 0.1 for float32's 0.100000001."""
    number = value.item()
    if value.dtype.kind == "f":
        short = float(str(value[()]))
        return short if value.dtype.type(short) == value or number != number else number
    return number


def fits(tensors: Sequence[Any], inputs: Sequence[GraphInput]) -> bool:
    """Whether tensors have the shapes of inputs, so that they can stand for them."""
    return len(tensors) == len(inputs) and all(t.shape == i.shape for t, i in zip(tensors, inputs))


def identifier(text: str) -> str:
    """A path or another text as a Python identifier: `params['w1']` is params_w1."""
    name = re.sub(r"\W+", "_", text).strip("_")
    return f"_{name}" if name[:1].isdigit() else f"{name}_" if keyword.iskeyword(name) else name


def unique(name: str, taken: Set[str]) -> str:
    """The name, with a number behind it if it is taken; it is taken from now on."""
    new = name if name not in taken else next(
        n for n in (f"{name}_{i}" for i in itertools.count(1)) if n not in taken)
    taken.add(new)
    return new
