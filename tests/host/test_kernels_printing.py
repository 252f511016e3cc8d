"""print_tensor: the text of values, line by line, and when it is written."""
import doctest

import numpy as np
import pytest
from kernel_checks import ops

import popfn.host as popxl
from popfn.host.ops import _print


def printed(capfd, array, dtype=None, **options):
    """What a program writes to stderr that loads and prints an array."""
    ir = popxl.Ir()
    with ir.main_graph:
        stream = popxl.h2d_stream(array.shape, dtype or popxl.dtype.as_dtype(array.dtype))
        t = ops.host_load(stream)
        shown = ops.print_tensor(t, **options)
        out = popxl.d2h_stream(t.shape, t.dtype)
        ops.host_store(out, shown)
    capfd.readouterr()
    with popxl.Session(ir) as session:
        result = session.run({stream: array})[out]
    np.testing.assert_array_equal(result, array)
    text, error = capfd.readouterr()
    assert text == ""
    return error


def test_the_documented_example():
    assert doctest.testmod(_print).failed == 0


def test_integers_and_titles(capfd):
    x = np.array([[1, -20, 3], [4, 5, 600]], np.int32)
    assert printed(capfd, x, title="x") == "x: [[  1 -20   3]\n [  4   5 600]]\n"
    assert printed(capfd, np.array([True, False]), title="b") == "b: [1 0]\n"
    assert printed(capfd, np.array(7, np.uint8), title="s") == "s: 7\n"


def test_the_title_is_the_name_of_the_tensor_by_default(capfd):
    assert printed(capfd, np.array([1], np.int32)).startswith("print_h2d")


@pytest.mark.parametrize("form,digits,expected", [
    ("auto", 8, "[ 1.0000000 -2.5000000  0.0000000]"),
    ("fixed", 4, "[ 1.000 -2.500  0.000]"),
    ("scientific", 3, "[ 1.00e+00 -2.50e+00  0.00e+00]"),
    ("none", 8, "[ 1.0 -2.5  0.0]"),
    ("auto", 0, "[1.0 -2.5 0.0]"),
])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float_formats(capfd, form, digits, expected, dtype):
    x = np.array([1, -2.5, 0], dtype)
    assert printed(capfd, x, title="x", float_format=form, digits=digits) == f"x: {expected}\n"


def test_digits_count_those_before_the_point(capfd):
    x = np.array([1234.5, 1], np.float32)
    assert printed(capfd, x, title="x", digits=6) == "x: [1234.50    1.00]\n"
    assert printed(capfd, x, title="x", digits=2, float_format="fixed") == "x: [1234    1]\n"


def test_auto_is_scientific_where_fixed_would_not_do(capfd):
    assert printed(capfd, np.array([1e12, 1], np.float32), title="x", digits=4) == "x: [1.000e+12 1.000e+00]\n"
    assert printed(capfd, np.array([1e-5, 1], np.float32), title="x", digits=4) == "x: [1.000e-05 1.000e+00]\n"


def test_infinities_and_nan(capfd):
    x = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    assert printed(capfd, x, title="x", digits=3) == "x: [ inf -inf  nan 1.00]\n"
    assert printed(capfd, x[:3], title="x") == "x: [ inf -inf  nan]\n"


def test_large_values_are_summarised(capfd):
    x = np.arange(100, dtype=np.int32)
    assert printed(capfd, x, title="x", summarise_threshold=50, edge_items=2) == "x: [ 0  1 ... 98 99]\n"
    assert "..." not in printed(capfd, x, title="x", summarise_threshold=100)
    # The elements that are left out do not widen the others.
    x[50] = 10**6
    assert printed(capfd, x, title="x", summarise_threshold=50, edge_items=1) == "x: [ 0 ... 99]\n"


def test_lines_are_broken(capfd):
    text = printed(capfd, np.arange(20, dtype=np.int32), title="x", max_line_width=20)
    assert len(text.splitlines()) > 3 and all(len(line) <= 23 for line in text.splitlines())


def test_brackets_and_separators(capfd):
    x = np.array([[1, 2], [3, 4]], np.int32)
    assert printed(capfd, x, title="x", separator=",", open_bracket="{", close_bracket="}") == "x: {{1,2},\n {3,4}}\n"


def test_8_bit_floats(capfd):
    codes = popxl.fp8_utils.host_pow2scale_cast_to_fp8([0.75, -240.0], popxl.float8_143)
    assert printed(capfd, codes, title="x", digits=5) == "x: [   0.75 -240.00]\n"


def test_nothing_is_printed_without_print_self(capfd):
    assert printed(capfd, np.array([1], np.int32), print_self=False) == ""


def test_printing_once_for_each_run_even_of_constants_and_unused_values(capfd):
    ir = popxl.Ir()
    with ir.main_graph:
        ops.print_tensor(popxl.constant(np.array([5], np.int32)), title="five")
    with popxl.Session(ir) as session:
        capfd.readouterr()
        for _ in range(3):
            session.run()
            assert capfd.readouterr().err == "five: [5]\n"


def test_the_gradient_is_printed(capfd):
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.array([3], np.float32))
        graph = ir.create_graph(lambda x: ops.print_tensor(x * x, "y", print_self=False, print_gradient=True), x)
        call = ops.call_with_info(graph, x)
        info = popxl.transforms.autodiff(graph)
        seed = popxl.constant(np.array([2], np.float32))
        (grad,) = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
        ops.host_store(popxl.d2h_stream(grad.shape, grad.dtype), grad)
    with popxl.Session(ir) as session:
        capfd.readouterr()
        session.run()
    assert capfd.readouterr().err == "Gradient___y: [2.0000000]\n"
