"""Serialised loops in programs: the uses that popxl_addons tests, what PopXL asks for, and what cannot be streamed."""
import re
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from serial_cases import IO_TILES, agree, by_definition, by_session, by_text, close, f32, same, specs

import popfn as pf
import popfn.numpy as pnp
from popfn._batch import IO_MODES, RESIDUALS
from popfn.trace.errors import ArgumentError, LoweringError

STEPS, BATCH, WIDTH = 4, 2, 2
PART = pf.spec((BATCH, WIDTH))
WHOLE = (STEPS * BATCH, WIDTH)
STACKED = (STEPS, BATCH, WIDTH)
rng = np.random.default_rng(0)
X = np.arange(STEPS * BATCH * WIDTH, dtype=f32).reshape(WHOLE)
TWO = np.full((BATCH, WIDTH), 2, f32)
W = rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(f32)
BIAS = rng.normal(0, 0.1, WIDTH).astype(f32)
CT = rng.normal(size=STACKED).astype(f32)


# ---------------------------------------------------------------------------- popxl_addons' own tests
def scale(w: Any, x: Any) -> Any:
    return x * w


def linear(w: Any, b: Any, x: Any) -> Any:
    return x @ w + b


def single(mode: str) -> Callable[..., Any]:
    buffer = pf.remote_buffer(PART, STEPS, name="out_buffer")
    serial = pf.batch_serialise(scale, STEPS, in_axes=(None, 0), stores=pf.Remote(buffer), io_mode=mode)

    def f(w: Any, x: Any) -> Any:
        assert serial(w, x) is None
        return pf.load(buffer.read(0))
    return f


def entries(mode: str) -> Callable[..., Any]:
    buffer = pf.remote_buffer(PART, STEPS, rows=2)
    serial = pf.batch_serialise(scale, STEPS, (None, 0), stores=pf.Remote(buffer), rows=2, io_mode=mode)

    def f(w: Any, x: Any) -> Any:
        serial(w, x, row=1)
        return buffer.read(1)
    return f


def entries_func_offset(mode: str) -> Callable[..., Any]:
    buffer = pf.remote_buffer(PART, STEPS, rows=2)
    serial = pf.batch_serialise(scale, STEPS, (None, 0), stores=pf.Remote(buffer, lambda row: 1), rows=2, io_mode=mode)

    def f(w: Any, x: Any) -> Any:
        serial(w, x, row=0)
        return buffer.read(1)
    return f


def three_graphs(mode: str) -> Tuple[Callable[..., Any], ...]:
    buffer = pf.remote_buffer(PART, STEPS, rows=3, name="activations")
    return (pf.batch_serialise(scale, STEPS, (None, 0), stores=pf.Remote(buffer), io_mode=mode),
            pf.batch_serialise(scale, STEPS, (None, 0), loads=(None, pf.Remote(buffer)), stores=pf.Remote(buffer, 1),
                               rows=2, io_mode=mode),
            pf.batch_serialise(scale, STEPS, (None, 0), loads=(None, pf.Remote(buffer, 2)), io_mode=mode))


def sequence(mode: str) -> Callable[..., Any]:
    first, middle, last = three_graphs(mode)

    def f(w: Any, x: Any) -> Any:
        first(w, x)
        middle(w, None, row=0)
        middle(w, None, row=1)
        return last(w, None)
    return f


def sequence_in_a_scan(mode: str) -> Callable[..., Any]:
    first, middle, last = three_graphs(mode)

    def f(w: Any, x: Any) -> Any:
        first(w, x)
        pf.scan(lambda c, row: (middle(w, None, row=row), None), None, np.arange(2))
        return last(w, None)
    return f


def grad(mode: str) -> Callable[..., Any]:
    upstream = pf.remote_buffer(PART, STEPS, name="grad_buffer")
    fwd, back = pf.fwd_and_grad(linear, STEPS, in_axes=(None, None, 0), cotangents=pf.Remote(upstream), io_mode=mode)

    def f(w: Any, b: Any, x: Any, ct: Any) -> Any:
        upstream.write(0, ct)
        y, residuals = fwd(w, b, x)
        return y, back(residuals)
    return f


def rb_only_grad(mode: str) -> Callable[..., Any]:
    upstream, inputs = (pf.remote_buffer(PART, STEPS, name=name) for name in ("grad_buffer", "x_buffer"))
    fwd, back = pf.fwd_and_grad(linear, STEPS, in_axes=(None, None, 0), loads=(None, None, pf.Remote(inputs)),
                                cotangents=pf.Remote(upstream), io_mode=mode)

    def f(w: Any, b: Any, x: Any, ct: Any) -> Any:
        inputs.write(0, pnp.reshape(x, STACKED))
        upstream.write(0, ct)
        y, residuals = fwd(w, b, None)
        return y, back(residuals)
    return f


def derivative(w: Any, b: Any, x: Any, ct: Any) -> Any:
    y, pull = pf.vjp(linear, w, b, x)
    return y, pull(ct.reshape(WHOLE))


def stacked_times(factor: float) -> Callable[..., Any]:
    return lambda w, x: (x * factor).reshape(STACKED)


ADDONS: Dict[str, Tuple[Callable[[str], Callable[..., Any]], Callable[..., Any], Tuple[Any, ...]]] = {
    "fwd_single": (single, stacked_times(2), (TWO, X)),
    "entries": (entries, stacked_times(2), (TWO, X)),
    "entries_func_offset": (entries_func_offset, stacked_times(2), (TWO, X)),
    "sequence": (sequence, lambda w, x: x * 16, (TWO, X)),
    "sequence in a scan": (sequence_in_a_scan, lambda w, x: x * 16, (TWO, X)),
    "grad": (grad, derivative, (W, BIAS, X, CT)),
    "rb_only_grad": (rb_only_grad, derivative, (W, BIAS, X, CT)),
}


@pytest.mark.parametrize("name", ADDONS)
def test_what_popxl_addons_tests(name: str) -> None:
    make, plain, args = ADDONS[name]
    agree(make, plain, [args, args])
    close(by_definition(make("compute"), [args]), by_definition(plain, [args]), "eager")
    close(by_definition(pf.jit(make("compute")), [args]), by_definition(plain, [args]), "jit")


# ---------------------------------------------------------------------------- what PopXL asks for
def graphs_of(ir: Any) -> List[Any]:
    """All graphs that are called from the main graph."""
    found: List[Any] = []
    waiting = [ir.main_graph]
    while waiting:
        graph = waiting.pop()
        if all(graph is not g for g in found):
            found.append(graph)
            waiting += graph.called_graphs
    return found


def all_ops(ir: Any) -> List[Any]:
    return [op for graph in graphs_of(ir) for op in graph.ops]


def buffers_of(ir: Any) -> List[Tuple[Tuple[int, ...], int]]:
    """The shape and the number of entries of each remote buffer that is moved to or from."""
    found = {id(b): b for b in (op.attrs["buffer"] for op in all_ops(ir) if "buffer" in op.attrs)}
    return sorted((b.tensor_shape, b.entries) for b in found.values())


def transfers(ir: Any) -> List[str]:
    return sorted(op.kind for op in all_ops(ir) if op.kind in MOVES)


MOVES = ("host_load", "host_store", "remote_load", "remote_store")


def tiles(ir: Any) -> Dict[str, str]:
    """The tiles on which each tensor lies, found by following calls from the main graph; of constants none is said."""
    found: Dict[str, str] = {t.id: "compute" for t in ir.main_graph.variables}

    def visit(graph: Any) -> None:
        for op in graph.ops:
            for called in op.called:
                assert len(op.inputs) == len(called.inputs), op
                for t, inner in zip(op.inputs, called.inputs):
                    if t.id in found:
                        assert found.setdefault(inner.id, found[t.id]) == found[t.id], (op, inner)
                visit(called)
            for i, t in enumerate(op.outputs):
                tile = found.get(op.called[0].outputs[i].id) if op.called else op.tile_set
                found.update({t.id: tile} if tile else {})
    visit(ir.main_graph)
    return found


def lowered(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return pf.lower(f, *map(specs, args), io_tiles=IO_TILES, target="host", **options)


def layer(x: Any, w: Any) -> Any:
    return pnp.tanh(x @ w), pnp.mean((x @ w) ** 2)


def training(steps: int, mode: str = "compute", residuals: str = "remote") -> Callable[..., Any]:
    serial = pf.batch_serialise(layer, steps, (0, None), reduce=(None, "mean"), io_mode=mode, residuals=residuals)

    def step(w: Any, x: Any) -> Any:
        (value, y), slope = pf.value_and_grad(lambda w: serial(x, w)[::-1], has_aux=True)(w)
        return w - 0.1 * slope, (value, y)
    return step


@pytest.mark.parametrize("residuals", RESIDUALS)
@pytest.mark.parametrize("mode", IO_MODES)
def test_programs_do_not_grow_with_the_steps(mode: str, residuals: str) -> None:
    def size(steps: int) -> Tuple[int, int]:
        ir = lowered(training(steps, mode, residuals), W, np.zeros((12, WIDTH), f32), state=0).ir
        return len(graphs_of(ir)), len(all_ops(ir))
    assert len({size(n) for n in (3, 4, 6, 12)}) == 1


def layers(ws: Any, x: Any) -> Any:
    def loss(ws: Any) -> Any:
        return pnp.sum(pf.scan(lambda h, w: (pnp.tanh(h @ w), None), x, ws)[0] ** 2)
    value, slopes = pf.value_and_grad(loss)(ws)
    return pf.map(lambda p: p[0] - 0.1 * p[1], (ws, slopes)), value


def test_programs_do_not_grow_with_the_layers() -> None:
    sizes = set()
    for n in (2, 12):
        program = pf.lower(layers, pf.remote(pf.spec((n, WIDTH, WIDTH))), pf.spec((3, WIDTH)), state=0)
        sizes.add((len(graphs_of(program.ir)), len(all_ops(program.ir))))
        assert len(program.variables["ws"]) == n
        assert buffers_of(program.ir) == [((WIDTH, WIDTH), n)] * 2  # the weights and their gradients
    assert len(sizes) == 1


@pytest.mark.parametrize("mode", IO_MODES[1:])
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_parts_go_through_io_tiles(mode: str, steps: int) -> None:
    """Moves of parts, and the numbers of the entries that they need, are on IO tiles; all else is on the others."""
    ir = lowered(training(steps, mode), W, np.zeros((12, WIDTH), f32), state=0).ir
    found = tiles(ir)
    streams = {"x": (12 // steps, WIDTH), "out[1]": (12 // steps, WIDTH)}
    moved = [op for op in all_ops(ir) if op.kind in MOVES]
    parts = [op for op in moved if "buffer" in op.attrs or op.attrs["stream"].shape in streams.values()]
    assert len(parts) > 3 and {op.tile_set for op in parts} == {"io"}
    assert {op.tile_set for op in moved if op not in parts} == {"compute"}
    for op in all_ops(ir):
        if op.kind == "io_tile_copy":
            other = "compute" if op.tile_set == "io" else "io"
            assert {found[t.id] for t in op.inputs if t.id in found} <= {other}, op
        elif not op.called:
            assert {found[t.id] for t in op.inputs if t.id in found} <= {op.tile_set}, op


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_parts_move_beside_the_computation(steps: int) -> None:
    """In the order of the ops: load 0, load 1, compute 0, then turns, store n - 2, compute n - 1, store n - 1."""
    program = lowered(pf.batch_serialise(rows, steps, io_mode="io_overlapped"), np.zeros((12, WIDTH), f32))
    names = {"host_load": "load", "host_store": "store", "call": "compute", "repeat": "turns"}

    def order(graph: Any) -> List[str]:
        return [names[op.kind] for op in graph.ops if op.kind in names]
    assert order(program.ir.main_graph) == [
        "load", "load", "compute", *["turns"] * (steps > 2), "store", "compute", "store"]
    for op in program.ir.main_graph.ops:
        if op.kind == "repeat":
            turn = op.called[0].ops[0].called[0]  # the host wraps what it repeats
            assert op.attrs["count"] == steps - 2 and order(turn) == ["load", "store", "compute"]


@pytest.mark.parametrize("mode", IO_MODES)
def test_the_largest_number_of_transfers_counts(mode: str) -> None:
    """Streams with fewer parts, and those of whole arrays, are used beside those with most."""
    def make(mode: str) -> Callable[..., Any]:
        two, six = (pf.batch_serialise(lambda x, w: (x * w, x.sum()), n, (0, None), reduce=(None, "sum"), io_mode=mode)
                    for n in (2, 6))
        return lambda x, y, w: (two(x, w), six(y, w), w * 2)
    x, y = rng.normal(size=(2, 12, 2)).astype(f32)
    made = agree(make, lambda x, y, w: ((x * w, x.sum()), (y * w, y.sum()), w * 2), [(x, y, TWO[0])] * 2, modes=(mode,))
    program = made[mode]
    assert program.ir.num_host_transfers == 6
    assert {name: stream.shape for name, stream in program.loads.items()} == {"x": (6, 2), "y": (2, 2), "w": (2,)}
    assert {name: stream.shape for name, stream in program.stores.items()} == {
        "out[0][0]": (6, 2), "out[0][1]": (), "out[1][0]": (2, 2), "out[1][1]": (), "out[2]": (2,)}


LAYOUTS: Dict[str, Tuple[Callable[..., Any], List[Tuple[Tuple[int, ...], int]]]] = {
    "a handle": (entries("compute"), [((BATCH, WIDTH), 2 * STEPS)]),
    "rows that are never used": (lambda w, x: (single("compute")(w, x), None)[0], [((BATCH, WIDTH), STEPS)]),
    "three rows": (sequence("compute"), [((BATCH, WIDTH), 3 * STEPS)]),
    "residuals": (lambda w, x: pf.grad(lambda w: pf.batch_serialise(
        lambda w, x: pnp.sum(pnp.sin(x * w)), STEPS, (None, 0), reduce="sum")(w, x))(w), [((BATCH, WIDTH), STEPS)] * 2),
    "a value between two loops": (lambda w, x: pf.batch_serialise(scale, STEPS, (None, 0))(
        w, pf.batch_serialise(scale, STEPS, (None, 0))(w, x)), [((BATCH, WIDTH), STEPS)]),
    "streams alone": (lambda w, x: pf.batch_serialise(scale, STEPS, (None, 0))(w, x), []),
    "residuals on the device": (lambda w, x: pf.grad(lambda w: pf.batch_serialise(
        lambda w, x: pnp.sum(pnp.sin(x * w)), STEPS, (None, 0), reduce="sum", residuals="device")(w, x))(w), []),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_buffers_have_an_entry_for_each_step(name: str) -> None:
    f, want = LAYOUTS[name]
    assert buffers_of(lowered(f, TWO, X).ir) == want


STATE_LAYOUTS: Dict[str, Tuple[Callable[..., Any], Tuple[int, ...], List[Tuple[Tuple[int, ...], int]]]] = {
    "whole": (lambda w, x: (w * x, w[0]), (3, 2, 2), [((3, 2, 2), 1)]),
    "scanned": (lambda w, x: (w, pf.scan(lambda c, v: (c + v, None), x, w)[0]), (3, 2), [((2,), 3)]),
    "whole and scanned": (lambda w, x: (w, pf.scan(lambda c, v: (c + v, None), w[0, 0], w[0])[0] + pf.scan(
        lambda c, v: (c + v[1, 0], None), x, w)[0]), (3, 2, 2), [((2, 2), 3)]),
    "nested": (lambda w, x: (w, pf.scan(lambda c, v: (pf.scan(lambda c, u: (c + u, None), c, v)[0], None), x, w)[0]),
               (3, 4, 2), [((2,), 12)]),
    "cut": (lambda w, x: (w, pf.batch_serialise(lambda v: v.sum(0), 3, reduce="sum")(w)), (6, 2), [((2, 2), 3)]),
    "one scalar for each step": (lambda w, x: (w, pf.scan(lambda c, v: (c + v, None), x, w)[0]), (5,), [((), 5)]),
}


@pytest.mark.parametrize("name", STATE_LAYOUTS)
def test_state_has_an_entry_for_what_is_loaded_at_once(name: str) -> None:
    f, shape, want = STATE_LAYOUTS[name]
    state = rng.normal(size=shape).astype(f32)
    x = np.ones((2,) if shape != (5,) else (), f32)
    program = pf.lower(f, pf.remote(specs(state)), specs(x), state=0)
    assert buffers_of(program.ir) == want
    got = program.variables["w"]
    assert [(v.shape, len(got)) for v in got[:1]] == want
    close(by_session(program, [(x,)], state), by_definition(f, [(x,)], state), name)


# ---------------------------------------------------------------------------- what cannot be streamed
STREAM = pf.HostStream()


def total(x: Any) -> Any:
    return pnp.sum(x * x)


def rows(x: Any) -> Any:
    return x * 2


def streaming(n: int = 2, f: Callable[..., Any] = total, loads: Any = STREAM, **options: Any) -> Callable[..., Any]:
    return pf.batch_serialise(f, n, reduce="sum" if f is total else None, loads=loads, **options)


ASKED = "loads=HostStream() asks to stream f32[8,2] in 2 parts, but "
STORED = "stores=HostStream() asks to stream f32[8,2] in 2 parts, but "
INSIDE = "it is inside of a loop, a branch or a function that is called"
CANNOT: Dict[str, Tuple[Callable[..., Any], str]] = {
    "computed": (lambda x: streaming()(x + 1), ASKED + "it is computed by the program"),
    "an inner result": (lambda x: streaming()(streaming(f=rows, loads=None)(x)),
                        ASKED + "it is computed by the program"),
    "a result too": (lambda x: (streaming()(x), x), ASKED + "it is a result of the program too"),
    "whole too": (lambda x: (streaming()(x), x[0]), ASKED + "it is used as a whole too"),
    "two numbers of steps": (lambda x: (streaming()(x), streaming(4, loads=None)(x)),
                             ASKED + "it is cut in different ways too"),
    "two axes": (lambda x: (streaming()(x), streaming(loads=None, in_axes=1)(x)),
                 ASKED + "it is cut in different ways too"),
    "the device too": (lambda x: (streaming()(x), streaming(loads="device")(x)),
                       ASKED + "another use asks for it on the device"),
    "kept on the device": (lambda x: (streaming()(x), streaming(loads=None, residuals="device")(x)),
                           ASKED + "several loops use it, and residuals='device' keeps it on the device for them"),
    "in a scan": (lambda x: pf.scan(lambda c, _: (c + streaming()(x), None), 0.0, None, length=2)[0], ASKED + INSIDE),
    "in a branch": (lambda x: pf.cond(x[0, 0] > 0, streaming(), total, x), ASKED + INSIDE),
    "in another": (lambda x: streaming(1, lambda y: streaming()(y)[None], loads=None)(x), ASKED + INSIDE),
    "stored and computed with": (lambda x: pf.batch_serialise(rows, 2, stores=STREAM)(x) + 1,
                                 STORED + "it is not among what a run gives back"),
    "stored in a scan": (lambda x: pf.scan(lambda c, _: (c, pf.batch_serialise(rows, 2, stores=STREAM)(x)), 0.0, None,
                                           length=2)[1], STORED + INSIDE),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_streamed(name: str) -> None:
    f, text = CANNOT[name]
    with pytest.raises(LoweringError) as e:
        pf.lower(f, pf.spec((8, 2)))
    lines = str(e.value).split("\n  ")
    option = text.split("=")[0]
    assert lines[0] == text and lines[2:] == [f"way out: {option}=None lets the lowering decide"]
    assert re.match(r"at tests/lower/test_serial.py:\d+, in ", lines[1]), lines


STATE_CANNOT: Dict[str, Tuple[Callable[..., Any], str]] = {
    "state": (lambda w, x: (w * 2, streaming()(w)), ASKED + "it is state of the program"),
    "new state": (lambda w, x: (pf.batch_serialise(rows, 2, stores=STREAM)(x), x[0]),
                  STORED + "it is not among what a run gives back"),
}


@pytest.mark.parametrize("far", [lambda a: a, pf.remote], ids=["device", "remote"])
@pytest.mark.parametrize("name", STATE_CANNOT)
def test_state_cannot_be_streamed(name: str, far: Any) -> None:
    f, text = STATE_CANNOT[name]
    with pytest.raises(LoweringError) as e:
        pf.lower(f, far(pf.spec((8, 2))), pf.spec((8, 2)), state=0)
    assert str(e.value).split("\n")[0].replace("@remote", "") == text


def test_what_can_be_streamed_is() -> None:
    def f(x: Any, y: Any) -> Any:
        g = pf.batch_serialise(lambda x, y: (x * y, pnp.sum(x)), 4, reduce=(None, "sum"), loads=STREAM,
                               stores=(STREAM, None))
        return g(x, y), pf.grad(lambda x: g(x, y)[1])(x)
    program = lowered(f, X, X + 1)
    assert program.ir.num_host_transfers == 4
    assert {name: s.shape for name, s in program.loads.items()} == {"x": (2, 2), "y": (2, 2)}
    same(by_text(program, (X, X + 1)), by_session(program, [(X, X + 1)]), "text")


@pytest.mark.parametrize("axis", [0, 1])
def test_cotangents_are_streamed_from_their_end(axis: int) -> None:
    """The loop of the derivative begins with the last part, of arguments and of results."""
    def f(w: Any, x: Any, ct: Any) -> Any:
        return pf.vjp(lambda x: pf.batch_serialise(
            lambda x: pnp.sin(x) * w, 4, axis, axis)(x), x)[1](ct)[0]
    x = np.ascontiguousarray(np.moveaxis(X, 0, axis))
    ct = np.cos(x)
    w = f32(2)
    made = lowered(f, w, x, ct)
    assert made.loads["ct"].shape == made.stores["out"].shape == (2, 2)
    assert made.ir.num_host_transfers == 4
    want = by_definition(lambda w, x, ct: pnp.cos(x) * ct * w, [(w, x, ct)] * 2)
    close(by_session(made, [(w, x, ct)] * 2), want, "cotangents")
    same(by_text(made, (w, x, ct)), by_session(made, [(w, x, ct)]), "text")


@pytest.mark.parametrize("mode", IO_MODES[1:])
def test_io_modes_need_io_tiles(mode: str) -> None:
    with pytest.raises(LoweringError) as e:
        pf.lower(pf.batch_serialise(rows, 2, io_mode=mode), pf.spec((8, 2)))
    lines = str(e.value).split("\n  ")
    assert lines[0] == f"io_mode={mode!r} needs IO tiles, and the program has none"
    assert lines[1].startswith("at tests/lower/test_serial.py:")
    assert lines[2:] == ["way out: pf.lower(..., io_tiles=32), or io_mode='compute'"]


@pytest.mark.parametrize("tiles", [-1, 1.5, True, None, "32", 1472, 10 ** 6, pf.Array(0.5)])
def test_io_tiles_are_a_number(tiles: Any) -> None:
    with pytest.raises(ArgumentError) as e:
        pf.lower(rows, pf.spec(2), io_tiles=tiles)
    lines = str(e.value).split("\n  ")
    assert lines[0] == f"lower: io_tiles is a number from 0 to below the 1472 tiles of an IPU, got {tiles!r}"
    assert lines[1].startswith("at tests/lower/test_serial.py:")
    assert lines[2:] == ["way out: io_tiles=32, which leaves most tiles to the computation"]
