"""The rows of the project's conventions, one answer for each corner case, and the tests that hold them."""
from types import ModuleType
from typing import Dict, Tuple

import pytest
import test_conventions_derivatives as derivatives
import test_conventions_lanes as lanes
import test_conventions_types as types
import test_conventions_values as values

#: By module, in the order of the conventions: the short name of a row, and its tests without the `test_` in front.
ROWS: Dict[ModuleType, Dict[str, Tuple[str, ...]]] = {
    types: {
        "default types": ("default_types", "narrowing_loses_no_value"),
        "dtypes": (
            "dtypes", "float8_formats_are_those_of_ml_dtypes", "float64_on_request", "refused_dtypes"),
        "Python scalar with an array": ("python_scalars_are_weak", "int_array_with_python_float_is_float32"),
        "Python integer that does not fit": ("python_integer_that_does_not_fit", "python_integer_that_just_fits"),
        "NumPy scalar": ("numpy_scalars_are_strong",),
        "== of traced values": ("equality_is_elementwise",),
        "division of integers": ("integer_division",),
        "mixed dtypes": ("mixed_dtypes",),
    },
    values: {
        "float16 accumulation": (
            "float16_accumulates_in_float32", "float16_norms_accumulate_in_float32",
            "float16_softmax_and_logsumexp_accumulate_in_float32"),
        "all -inf, fully masked": ("nothing_but_minus_infinity", "fully_masked_row_of_softmax_where"),
        "no identity changes a value": (
            "no_identity_changes_a_value", "adding_zero_gives_plus_zero", "sign_of_minus_zero_is_plus_zero"),
        "max, sort and NaN; round half": ("max_with_nan_is_nan", "sort_puts_nan_last", "round_half_to_even"),
        "ties of argmax, topk, sort": ("argmax_ties", "topk_and_sort_ties"),
        "zero-sized arrays": ("zero_sized_arrays", "lowered_programs_contain_no_zero_sized_tensor"),
        "static index out of range": ("static_index_out_of_range",),
        "negative index": ("negative_index_counts_from_the_end",),
        "traced index out of range, read": ("traced_index_out_of_range_read",),
        "traced index out of range, write": ("traced_index_out_of_range_write",),
        "duplicate indices": ("duplicate_indices",),
        "loop of zero steps": ("loop_of_zero_steps", "loop_of_zero_steps_is_not_lowered"),
    },
    derivatives: {
        "traced index out of range, gradient": (
            "gradient_of_a_clamped_read_goes_to_the_element_read", "gradient_of_a_dropped_write_is_zero"),
        "kinks": ("kinks",),
        "ties of reductions and pools": (
            "ties_of_reductions_share_the_cotangent", "ties_of_a_pool_go_to_the_first_winner"),
        "clip at a bound": ("clip_at_a_bound",),
        "powers": ("powers",),
        "products with zeros": ("products_with_zeros",),
        "0 * inf": ("zero_times_infinity_is_zero", "zero_cotangent_of_an_infinite_slope", "norm_at_zero_is_zero"),
        "where": ("the_branch_not_taken_contributes_nothing", "masked_softmax_has_no_nan_in_its_gradient"),
        "integers to grad": ("integers_are_not_differentiated", "integers_beside_floats"),
        "while loop in reverse mode": (
            "while_loop_without_a_bound", "bounded_while_loop_has_the_exact_gradient"),
        "custom rule that closes over": ("custom_rule_closing_over_a_differentiated_value",),
        "results of a custom backward": (
            "none_of_a_custom_backward_is_zero", "wrong_results_of_a_custom_backward"),
        "vmap of cond": ("vmap_of_cond_masks_the_branch_not_taken", "vmap_of_cond_in_a_lowered_program"),
    },
    lanes: {
        "gradient of psum": (
            "gradient_of_psum_outside", "gradient_of_psum_inside", "forward_and_reverse_mode_of_psum_agree"),
        "psum of what does not vary": ("psum_of_a_value_that_does_not_vary",),
        "randomness": (
            "the_oracle_has_the_published_values", "bits_are_those_of_threefry", "keys_are_two_words",
            "equal_bits_on_every_path", "no_hidden_state", "equal_bits_for_any_number_of_lanes"),
    },
}


@pytest.mark.parametrize("module", ROWS, ids=lambda m: m.__name__)
def test_every_row_has_its_tests_and_every_test_its_row(module):
    listed = [f"test_{name}" for names in ROWS[module].values() for name in names]
    assert len(listed) == len({*listed})
    assert {*listed} == {name for name in vars(module) if name.startswith("test_")}


def test_every_section_is_there():
    assert [len(rows) for rows in ROWS.values()] == [8, 12, 13, 3]
