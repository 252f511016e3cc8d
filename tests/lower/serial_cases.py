"""What the tests of memory share: a program run by a session, by its own text, and by the definition of its run."""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from test_text import module

import popfn as pf
import popfn.numpy as pnp
from popfn._batch import IO_MODES
from popfn.lower.program import Program
from popfn.trace import tree
from popfn.trace.aval import FLOAT8, SHORT

f32, f16, i32 = np.float32, np.float16, np.int32
IO_TILES = 32
Args = Tuple[Any, ...]


class Ran(NamedTuple):
    """The leaves of what each run gave, and of the state that it left."""

    results: List[List[np.ndarray]]
    states: List[List[np.ndarray]]


def leaves(x: Any) -> List[np.ndarray]:
    """The leaves of a tree as arrays."""
    return [np.asarray(leaf) for leaf in tree.leaves(x)]


def by_session(program: Program, runs: Sequence[Args], state: Any = None) -> Ran:
    """Each run in one session."""
    ran = Ran([], [])
    with pf.Session(program, state=state) as session:
        for args in runs:
            ran.results.append(leaves(session.run(*args)))
            ran.states.append(leaves(session.state) if program.state else [])
    return ran


def packed(x: np.ndarray) -> np.ndarray:
    """An array as PopXL takes it: with a structured dtype for float8."""
    return x.view([(SHORT[x.dtype].replace("f8", "float8"), "u1")]) if x.dtype in FLOAT8 else x


def by_text(program: Program, args: Args, state: Any = None) -> Ran:
    """One run of the text of a program, which runs by itself; None stands for results without elements."""
    main = module(program.as_text())["main"]
    kept = [] if not program.state else [state] if len(program.state) == 1 else list(state)
    waiting, names = iter(args), program.signature.inputs
    given = [packed(leaf) for i in range(len(program.arguments))
             for leaf in leaves(kept[program.state.index(i)] if i in program.state else next(waiting))]
    held = {names[i]: given[i] for i in program.state_leaves}
    out = main({name: x for name, x in zip(names, given) if name not in held}, held)

    def unpacked(x: Any, aval: Any) -> Any:
        return x.view(aval.dtype) if x is not None and x.dtype.names else x
    return Ran([[unpacked(out.get(name), a) for name, a in zip(program.signature.results, program.out_avals)]],
               [[unpacked(held[names[i]], program.in_avals[i]) for i in program.state_leaves]])


def by_definition(f: Callable[..., Any], runs: Sequence[Args], state: Any = None) -> Ran:
    """Each run on arrays, without a program: f of the state if there is some, and of the arguments."""
    ran = Ran([], [])
    state = tree.map(pnp.asarray, state)
    for args in runs:
        args = tree.map(pnp.asarray, args)
        if state is None:
            ran.results.append(leaves(f(*args)))
            ran.states.append([])
        else:
            state, out = f(state, *args)
            ran.results.append(leaves(out))
            ran.states.append(leaves(state))
    return ran


def same(got: Ran, want: Ran, what: str) -> None:
    """Bit-equal, as far as there are runs of both; what has no elements is not compared with a text."""
    for a, b in zip(got, want):
        for xs, ys in zip(a, b):
            assert len(xs) == len(ys), what
            for x, y in zip(xs, ys):
                if x is not None:
                    assert (x.shape, x.dtype) == (y.shape, y.dtype), what
                    assert x.tobytes() == y.tobytes(), f"{what}: {x} is not {y}"


def close(got: Ran, want: Ran, what: str, rtol: float = 1e-4) -> None:
    """Equal in types, and in values within rounding."""
    for a, b in zip(got, want):
        assert len(a) == len(b), what
        for xs, ys in zip(a, b):
            assert len(xs) == len(ys), what
            for x, y in zip(xs, ys):
                assert (x.shape, x.dtype) == (y.shape, y.dtype), what
                if x.dtype.kind == "f":
                    scale = np.max(np.abs(y[np.isfinite(y)]), initial=0.1).astype("f8")
                    tolerance = 4e-3 if x.dtype == f16 else rtol
                    np.testing.assert_allclose(x.astype("f8"), y.astype("f8"), tolerance, tolerance * scale,
                                               err_msg=what)
                else:
                    np.testing.assert_array_equal(x.astype("f8"), y.astype("f8"), err_msg=what)


def specs(x: Any) -> Any:
    """The types of a tree of arrays."""
    return tree.map(lambda leaf: pf.spec(np.shape(leaf), np.asarray(leaf).dtype), x)


def agree(make: Callable[[str], Callable[..., Any]], plain: Callable[..., Any], runs: Sequence[Args],
          state: Any = None, first: Any = None, modes: Sequence[str] = IO_MODES, rtol: float = 1e-4,
          ) -> Dict[str, Program]:
    """The program of `make(io_mode)` for each mode, which all give what `plain` does, and each the same bits.

    With a `state`, it is the first argument, of the types `first` if they are not those of the device; every run leaves
    the next one's. The text of each program gives the bits of its first run.
    """
    want = by_definition(plain, runs, state)
    made: Dict[str, Program] = {}
    before: Optional[Ran] = None
    for mode in modes:
        types = [specs(x) for x in runs[0]]
        if state is None:
            program = pf.lower(make(mode), *types, io_tiles=IO_TILES, target="host")
        else:
            program = pf.lower(make(mode), specs(state) if first is None else first, *types, state=0,
                               io_tiles=IO_TILES, target="host")
        made[mode] = program
        got = by_session(program, runs, state)
        close(got, want, f"io_mode={mode}", rtol)
        same(by_text(program, runs[0], state), got, f"the text with io_mode={mode}")
        if before is not None:
            same(got, before, f"{mode} and {modes[0]}")
        before = before or got
    return made
