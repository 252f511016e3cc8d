"""Named axes, loops, branches, calls and custom rules inside each other: what vmap without a name and loops over the
lanes give, with a name for the axis too."""
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import pytest
from control_flow import close
from hypothesis import Phase, given, strategies as st
from nested_programs import nested_programs
from nested_trees import OURS, Program, System
from test_nested import arguments, grad, grad_of_vmap, in_axes, jvp, jvp_of_grad, vmap, vmap_of_grad
from test_properties import examples

import popfn as pf
import popfn.numpy as pnp
from popfn.trace.tracer import named_axes

f32 = np.float32
XS = np.array([1.0, -2.0, 3.0], f32)
YS = np.array([0.5, 1.5, -1.0], f32)
W = np.arange(3, dtype=f32)
Lane = Callable[[Any, Any], Any]  # of two scalars, the first of which lanes may share, to one


# ---------------------------------------------------------------------------- random programs
class Named:
    """popfn with a name for each mapped axis. Derivatives inside are those of a lane: what they are by varies first."""

    in_rule = False

    def __getattr__(self, name: str) -> Any:
        return getattr(pf, name)

    def vmap(self, f: Any, in_axes: Any = 0, out_axes: Any = 0) -> Any:
        return lambda *xs: pf.vmap(f, in_axes, out_axes, axis_name=f"axis{len(named_axes())}")(*xs)

    @staticmethod
    def own(xs: Sequence[Any]) -> List[Any]:
        return [pf.pvary(x, tuple(named_axes())) for x in xs]

    def grad(self, f: Any, argnums: Any) -> Any:
        return lambda *xs: pf.grad(f, argnums)(*self.own(xs))

    def vjp(self, f: Any, *xs: Any) -> Any:
        if not self.in_rule:
            return pf.vjp(f, *self.own(xs))
        self.in_rule = False  # a rule gives what reverse mode gives: of a value that lanes share, the sum
        return pf.vjp(f, *xs)

    def custom_vjp(self, f: Any) -> Any:
        wrapped = pf.custom_vjp(f)

        def defvjp(fwd: Any, bwd: Any) -> None:
            def rule(*args: Any) -> Any:
                self.in_rule = True
                return bwd(*args)
            set_rules(fwd, rule)
        set_rules, wrapped.defvjp = wrapped.defvjp, defvjp
        return wrapped


NAMED = System(pnp, Named())


def vmap_of_jvp(s: System, program: Program) -> Callable[..., Any]:
    return s.of.vmap(jvp(s, program), in_axes(program))  # type: ignore[no-any-return]


TRANSFORMS = [vmap, vmap_of_grad, grad_of_vmap, vmap_of_jvp, grad, jvp_of_grad]


@examples(40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(nested_programs(), st.sampled_from(TRANSFORMS))
def test_names_of_axes_change_no_value(program, transform):
    """Nor does the order in which derivatives and lanes are taken."""
    if program.uses("custom_vjp"):
        transform = {vmap_of_jvp: vmap_of_grad, jvp_of_grad: grad_of_vmap}.get(transform, transform)
    args = arguments(program, transform)
    rtol = 2e-2 if program.halves else 1e-4
    want = transform(OURS, program)(*args)
    close(transform(NAMED, program)(*args), want, "eager", rtol)
    close(pf.make_jaxpr(transform(NAMED, program))(*args).eval(*args), want, "traced", rtol)


# ---------------------------------------------------------------------------- what holds jaxprs around lanes
def rules(kind: str, f: Any, *given: Any) -> Any:
    g = getattr(pf, kind)(f)
    getattr(g, {"custom_jvp": "defjvp", "custom_vjp": "defvjp"}[kind])(*given)
    return g


#: A tangent, and a cotangent, that differ between lanes though the result as it is written does not.
by_tangent = rules("custom_jvp", lambda y, s: y, lambda p, t: (p[0], t[0] * p[1]))
by_cotangent = rules("custom_vjp", lambda y, s: y, lambda y, s: (y, s), lambda s, ct: (ct * s, None))
halved = rules("custom_vjp", lambda y: y * y, lambda y: (y * y, y), lambda y, ct: (ct * y,))
fixed = rules("custom_vjp", lambda y, x: y + x, lambda y, x: (y + x, None), lambda _, ct: (3 * ct, 2 * ct))

CORES: Dict[str, Lane] = {
    "product": lambda y, x: y * x,
    "a constant": lambda y, x: y * x * pnp.sqrt(4.0),
    "of one": lambda y, x: pnp.sin(y),
    "lanes only": lambda y, x: pnp.sin(x) + 0 * y,
    "custom_jvp": by_tangent,
    "custom_vjp": by_cotangent,
    "custom_vjp of one": lambda y, x: halved(y) * x,
    "custom_vjp of both": fixed,
    "a gradient": lambda y, x: pf.grad(lambda u: u * u * x)(pnp.cos(x)) * y,
    "a choice": lambda y, x: pnp.where(x > 0, y, x * x),
}


def call_of_both(kind: str) -> Callable[[Lane], Lane]:
    """A function with a rule that is its true derivative, around another."""
    def hold(g: Lane) -> Lane:
        if kind == "custom_jvp":
            return rules(kind, g, lambda p, t: pf.jvp(g, p, t))
        return rules(kind, g, lambda y, x: (g(y, x), (y, x)), lambda yx, ct: pf.vjp(g, *yx)[1](ct))
    return hold


HOLDERS: Dict[str, Callable[[Lane], Lane]] = {
    "cond": lambda g: lambda y, x: pf.cond(y < 9, g, lambda y, x: y, y, x),
    "cond by lane": lambda g: lambda y, x: pf.cond(x > 0, g, lambda y, x: 2 * y, y, x),
    "cond that closes over": lambda g: lambda y, x: pf.cond(x > 0, lambda: g(y, x), lambda: 1.0),
    "switch by lane": lambda g: lambda y, x: pf.switch(
        (x > 0) * 2, [lambda y, x: y * y, lambda y, x: y, g, lambda y, x: x], y, x),
    "scan, constant": lambda g: lambda y, x: pf.scan(lambda c, t: (c + g(y, x) * t, None), 0.0, W)[0],
    "scan, carry": lambda g: lambda y, x: pf.scan(lambda c, t: (pnp.sin(g(c, x)) + t, None), y, W)[0],
    "scan, results": lambda g: lambda y, x: pf.scan(lambda c, t: (c, g(y, t + x)), 0, W)[1].sum(),
    "map": lambda g: lambda y, x: (pf.map(lambda t: g(y, t), W) * x).sum(),
    "fori_loop": lambda g: lambda y, x: pf.fori_loop(0, 2, lambda i, c: pnp.sin(g(c, x)), y),
    "fori_loop by lane": lambda g: lambda y, x: pf.fori_loop(
        0, (x > 0) + 1, lambda i, c: pnp.sin(g(c, x)), y, max_steps=3),
    "while_loop": lambda g: lambda y, x: pf.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, pnp.sin(g(c[1], x))), (0, y), max_steps=3)[1],
    "while_loop by lane": lambda g: lambda y, x: pf.while_loop(
        lambda c: c[0] < x, lambda c: (c[0] + 1, g(y, x) + c[1]), (0, y), max_steps=4)[1],
    "jit": pf.jit,
    "jit of all lanes": lambda g: lambda y, x: pf.jit(lambda: g(y, x))(),
    "checkpoint": pf.checkpoint,
    "custom_jvp": call_of_both("custom_jvp"),
    "custom_vjp": call_of_both("custom_vjp"),
}
#: Of what is reversed only.
BACKWARD_ONLY = {"custom_vjp", "custom_vjp of one", "custom_vjp of both"}


def forward(holders: Sequence[str], core: str) -> bool:
    """Whether forward mode has a use for what is in them."""
    return "custom_vjp" not in holders and core not in BACKWARD_ONLY


def held(holders: Sequence[str], core: str) -> Lane:
    """A core in the first holder in the second, and so on."""
    f = CORES[core]
    for name in holders:
        f = HOLDERS[name](f)
    return f


def looped(f: Callable[..., Any], y: Any) -> Any:
    """f of each lane, one after the other; y is shared if it is a scalar."""
    rows = [f(y if np.ndim(y) == 0 else y[i], f32(x)) for i, x in enumerate(XS)]
    return pf.tree.map(lambda *row: pnp.stack(row), *rows)


def weighted(lanes: Lane) -> Lane:
    """The sum over all lanes, to which each contributes with a weight of its own."""
    return lambda y, xs: (lanes(y, xs) * np.cos(XS)).sum()


def check_outside(f: Lane, y: Any) -> None:
    """f over named lanes, with a first argument that is shared or not, against f over lanes and a loop."""
    axes = (None if np.ndim(y) == 0 else 0, 0)
    named, plain = (pf.vmap(f, axes, axis_name=name) for name in ("i", None))
    want = looped(f, y)
    own = looped(pf.grad(f, (0, 1)), y)
    by_y, by_x = (np.asarray(g) * np.cos(XS) for g in own)
    gradients = by_y if np.ndim(y) else by_y.sum(), by_x
    for what, lanes in (("named", named), ("without a name", plain)):
        close(lanes(y, XS), want, what)
        close(pf.grad(weighted(lanes), (0, 1))(y, XS), gradients, f"gradient, {what}")
    close(pf.grad(weighted(pf.jit(named)), (0, 1))(y, XS), gradients, "jitted")


def check_inside(f: Lane, y: Any, forwards: bool) -> None:
    """Derivatives of a lane, and by a shared value the sum over the lanes; forward mode gives a lane's own."""
    def shared(change: Callable[..., Any]) -> Any:
        return pf.vmap(change, (None, 0), axis_name="i")(y, XS)

    def varied(change: Callable[..., Any]) -> Any:
        return shared(lambda y, x: change(pf.pvary(y, "i"), x))
    own = pf.vmap(pf.grad(f, (0, 1)), (None, 0))(y, XS)
    close(varied(pf.grad(f, (0, 1))), own, "grad")
    close(varied(lambda y, x: pf.vjp(f, y, x)[1](1.0)), own, "vjp")
    close(varied(pf.grad(pf.checkpoint(f), (0, 1))), own, "checkpoint")
    by_y, by_x = shared(pf.grad(f, (0, 1)))
    total = own[0].sum() if varies(f) else own[0]
    close(by_x, own[1], "by what varies")
    close(by_y, np.broadcast_to(np.asarray(total), XS.shape), "by what is shared")
    close(shared(pf.jacrev(f)), by_y, "jacrev")
    if not forwards:
        return

    def pushed(y: Any, x: Any) -> Any:
        return pf.jvp(f, (y, x), (f32(0.3), f32(2.0)))[1]
    want = pf.vmap(pushed, (None, 0))(y, XS)
    close(shared(pushed), want, "jvp")
    close(varied(pushed), want, "jvp")
    close(shared(lambda y, x: pf.linearize(f, y, x)[1](f32(0.3), f32(2.0))), want, "linearize")
    close(shared(pf.jacfwd(f)), own[0], "jacfwd")
    close(varied(pf.hessian(f, (0, 1))), pf.vmap(pf.hessian(f, (0, 1)), (None, 0))(y, XS), "hessian", 1e-4)


def varies(f: Lane) -> bool:
    """Whether f's result differs between lanes that share its first argument."""
    seen: List[Any] = []

    def lane(y: Any, x: Any) -> Any:
        seen.append(f(y, x).aval.varying)
        return 0.0
    pf.vmap(lane, (None, 0), axis_name="i")(f32(0.7), XS)
    return bool(seen[-1])


@pytest.mark.parametrize("holder, core", [
    *[(holder, "product" if holder == "custom_jvp" else "custom_vjp") for holder in HOLDERS],
    *[("scan, carry", core) for core in CORES], ("cond", "custom_jvp"), ("jit", "a constant")])
def test_lanes_with_a_name(holder, core):
    f = held([holder], core)
    check_outside(f, f32(0.7))
    check_inside(f, f32(0.7), forward([holder], core))


@examples(12, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(st.sampled_from(list(HOLDERS)), min_size=1, max_size=3), st.sampled_from(list(CORES)),
       st.sampled_from([f32(0.7), YS]))
def test_lanes_with_a_name_in_bodies_in_each_other(holders, core, y):
    """With operands of inner bodies that vary over more axes than when they were traced."""
    for i, name in enumerate(holders):
        if name == "custom_jvp" and not forward(holders[:i], core):
            holders[i] = "cond"
    f = held(holders, core)
    check_outside(f, y)
    check_inside(f, f32(0.7), forward(holders, core))


# ---------------------------------------------------------------------------- lanes that do not run
#: Rules that make NaN of the cotangent 0, as of a lane that does not run them, and one that does not ask for it.
signed = rules("custom_vjp", lambda x: x * 1, lambda x: (x * 1, None), lambda _, ct: (ct / pnp.abs(ct),))
signed_by_both = rules("custom_vjp", lambda x, w: x * w, lambda x, w: (x * w, (x, w)), lambda xw, ct: (
    xw[1] * ct / pnp.abs(ct), xw[0] * ct / pnp.abs(ct)))
constant = rules("custom_vjp", lambda x, w: x * w, lambda x, w: (x * w, None), lambda _, ct: (0 * ct + 5, 0 * ct + 7))

SKIPPED: Dict[str, Callable[[Any], Lane]] = {  # of w and x; lanes with x > 0 run what they hold
    "cond": lambda g: lambda w, x: pf.cond(x > 0, g, lambda w, x: 3 * x * w, w, x),
    "cond that closes over": lambda g: lambda w, x: pf.cond(x > 0, lambda: g(w, x), lambda: x),
    "switch": lambda g: lambda w, x: pf.switch(
        (x > 0) + 1, [lambda w, x: x, lambda w, x: 2 * w, g, lambda w, x: w], w, x),
    "while_loop": lambda g: lambda w, x: pf.while_loop(
        lambda c: c[0] < x, lambda c: (c[0] + 1, g(w, c[1])), (0, x), max_steps=4)[1],
    "fori_loop": lambda g: lambda w, x: pf.fori_loop(
        0, pnp.asarray(x).astype("int32"), lambda i, c: g(w, c), x, max_steps=3),
    "scan in cond": lambda g: lambda w, x: pf.cond(
        x > 0, lambda: pf.scan(lambda c, t: (g(w, c), None), x, None, length=2)[0], lambda: w),
    "jit in cond": lambda g: lambda w, x: pf.cond(x > 0, lambda: pf.jit(g)(w, x), lambda: w),
    "checkpoint in cond": lambda g: lambda w, x: pf.cond(x > 0, lambda: pf.checkpoint(g)(w, x), lambda: w),
    "cond in scan": lambda g: lambda w, x: pf.scan(lambda c, t: (pf.cond(
        c > t, g, lambda w, c: c * w, w, c), None), x, W)[0],
}
HELD: Dict[str, Lane] = {"of the lane": lambda w, x: signed(x) * w, "of both": lambda w, x: signed_by_both(x, w),
                         "of what is shared": lambda w, x: signed(w) * x, "constant": lambda w, x: constant(x, w)}


@pytest.mark.parametrize("name", [None, "i"])
@pytest.mark.parametrize("core", HELD)
@pytest.mark.parametrize("holder", SKIPPED)
def test_lanes_that_do_not_run_a_rule_contribute_nothing(holder, core, name):
    f = SKIPPED[holder](HELD[core])
    own = looped(pf.grad(f, (0, 1)), f32(1.5))
    by_w, by_x = pf.grad(lambda w, xs: pf.vmap(f, (None, 0), axis_name=name)(w, xs).sum(), (0, 1))(f32(1.5), XS)
    close(by_x, own[1], "by x")
    close(by_w, own[0].sum(), "by w")


# ---------------------------------------------------------------------------- what is known before there are lanes
KNOWN: Dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda x: x * pnp.sqrt(4.0),
    "pvary": lambda x: x * pnp.sqrt(pf.pvary(4.0, "i")),
    "psum": lambda x: x * pf.psum(pf.pvary(2.0, "i"), "i") / 3,
    "pmax": lambda x: x * pf.pmax(pf.pvary(2.0, "i"), "i"),
    "all_gather": lambda x: x * pf.all_gather(pf.pvary(2.0, "i"), "i").mean(),
    "ppermute": lambda x: x * (2 - pf.ppermute(pf.pvary(2.0, "i"), "i", [(0, 1)]) * (pf.axis_index("i") == 2)),
    "cond": lambda x: pf.cond(x > -9, lambda: 2.0 * x, lambda: 1.0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_literals_in_named_lanes(name):
    f = KNOWN[name]
    for wrap in (f, pf.jit(f), pf.checkpoint(f), lambda x: pf.scan(lambda c, _: (c, f(x)), 0, None, length=2)[1][1],
                 lambda x: pf.cond(x > -9, pf.jit(lambda: 2.0 * x), lambda: 1.0)):
        for run in (lambda f: f, pf.jit):
            close(run(pf.vmap(wrap, axis_name="i"))(XS), 2 * XS, name)


# ---------------------------------------------------------------------------- rules that lanes cannot follow
def test_a_rule_that_varies_where_the_function_does_not():
    wrong = rules("custom_jvp", lambda x: pf.psum(x, "i"), lambda p, t: (pf.psum(p[0], "i"), t[0]))
    right = rules("custom_jvp", lambda x: pf.psum(x, "i"), lambda p, t: (pf.psum(p[0], "i"), pf.psum(t[0], "i")))
    close(pf.jvp(pf.vmap(right, axis_name="i"), (XS,), (XS,))[1], np.full(3, XS.sum()), "right")
    with pytest.raises(pf.errors.ArgumentError) as e:
        pf.jvp(pf.vmap(wrong, axis_name="i"), (XS,), (XS,))
    lines = str(e.value).split("\n  ")
    assert lines[0].endswith("returns tangent as f32[]{i}, which varies over 'i' though the function's own result, "
                             "f32[], does not")
    assert lines[1].startswith("at tests/test_lanes.py:")
    assert lines[2] == "way out: pf.pvary(result, 'i') in the function, or pf.psum in the rule"


def test_rules_for_what_is_one_value_for_all_lanes():
    """A result that is the same in all lanes has one cotangent, and a cotangent that is psummed is not summed again."""
    total = rules("custom_vjp", lambda x: pf.psum(x, "i"), lambda x: (pf.psum(x, "i"), None), lambda _, ct: (ct,))
    spread = rules("custom_vjp", lambda y: pf.pvary(y, "i"), lambda y: (pf.pvary(y, "i"), None),
                   lambda _, ct: (pf.psum(ct, "i"),))
    scaled = rules("custom_vjp", lambda y, s: y * s, lambda y, s: (y * s, (y, s)),
                   lambda ys, ct: (pf.psum(ct * ys[1], "i"), ct * ys[0]))
    for f, want in ((lambda y, x: total(x) * y, XS.sum() * 3), (lambda y, x: spread(y) * x, XS.sum()),
                    (scaled, XS.sum())):
        close(pf.grad(lambda y, f=f: pf.vmap(f, (None, 0), axis_name="i")(y, XS).sum())(f32(1)), f32(want), "sum")
