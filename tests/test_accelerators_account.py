"""What follows from a compiler's account: memory, times, the largest batch."""

from dataclasses import replace

import pytest

from adapter_bert.accelerators.account import (
    Compiled,
    bytes_of_calls,
    largest_batch,
    roofline,
)
from adapter_bert.accelerators.devices import DEVICES

pytestmark = pytest.mark.newer_stack

STEP = Compiled(
    arguments=100,
    reused=30,
    outputs=31,
    temporaries=500,
    code=7,
    flops=394e9,
    moved=819e6,
    counter="the compiler",
)


def test_outputs_that_overwrite_arguments_take_no_memory():
    assert STEP.memory == 100 + 1 + 500 + 7


def test_the_slower_of_products_and_memory_bounds_a_step():
    """394 GFLOP at 197 TFLOP a second are 2 ms, 0.819 GB at 819 GB/s 1 ms."""
    best = roofline(STEP, DEVICES["v5e"], "bfloat16", 32)
    assert best["seconds_at_best"] == pytest.approx(2e-3)
    assert best["examples_per_second_at_best"] == pytest.approx(16000)
    assert best["bound_by"] == "products"
    best = roofline(replace(STEP, moved=819e7), DEVICES["v5e"], "float32", 32)
    assert best["seconds_at_best"] == pytest.approx(1e-2)
    assert best["bound_by"] == "memory"


def test_a_gpu_is_slower_in_float32():
    h100 = DEVICES["h100"]
    seconds = [
        roofline(STEP, h100, dtype, 32)["seconds_at_best"]
        for dtype in ("float32", "bfloat16")
    ]
    assert seconds == pytest.approx([394e9 / 67e12, 394e9 / 989e12])


class Compiler:
    """Stands for a compiler whose programs take so many bytes.

    It refuses those that need more than `refuses_above` bytes.
    """

    def __init__(self, fixed, row, refuses_above=float("inf"), bend=0):
        self.fixed, self.row, self.bend = fixed, row, bend
        self.refuses_above, self.tried = refuses_above, []

    def __call__(self, rows):
        self.tried.append(rows)
        memory = self.fixed + self.row * rows + self.bend * rows**2
        return memory if memory <= self.refuses_above else None


def test_a_batch_that_was_to_fit_and_does_not_is_made_smaller():
    compiler = Compiler(fixed=1000, row=10, bend=0.001)
    largest = largest_batch(compiler, 32, 8, 11000)
    tried = list(compiler.tried)
    assert largest == max(n for n in tried if compiler(n) <= 11000)
    assert largest % 8 == 0 and 11000 * 0.8 < compiler(largest) <= 11000
    assert len(tried) <= 5


@pytest.mark.parametrize("refuses_above", [11000, float("inf")])
def test_a_run_whose_batch_is_too_large_is_told_a_smaller_one(refuses_above):
    """Whether the compiler refuses, or tells more bytes than there are."""
    compiler = Compiler(1000, 10, refuses_above)
    largest = largest_batch(compiler, 1600, 16, 11000)
    assert largest == 976
    assert compiler.tried[-1] == 976


def test_a_run_that_nearly_fills_the_memory_is_measured_at_half():
    """Twice the rows are refused, so half of the rows give the slope."""
    compiler = Compiler(1000, 10, refuses_above=11000)
    assert largest_batch(compiler, 640, 8, 11000) == 976
    assert compiler.tried == [640, 1280, 320, 976]


def test_no_batch_fits_beside_too_large_weights():
    compiler = Compiler(20000, 10, refuses_above=11000)
    assert largest_batch(compiler, 32, 8, 11000) is None


MODULE = """
HloModule jit_train, is_scheduled=true
ENTRY %main.1 (a: f32[64,32], b: f32[32,16]) -> f32[64,16] {
  %a = f32[64,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1), metadata={op_name="b"}
  %gemm.1 = (f32[64,16]{1,0}, s8[4194304]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$lt$matmul", backend_config={}
  %other = f32[8]{0} custom-call(%a), custom_call_target="sort"
  ROOT %get.1 = f32[64,16]{1,0} get-tuple-element(%gemm.1), index=0
}
"""


def test_calls_of_cublas_read_operands_and_write_results():
    """The room in which it works, s8, is not moved."""
    assert bytes_of_calls(MODULE) == 4 * 64 * 32 + 2 * 32 * 16 + 4 * 64 * 16
    assert bytes_of_calls(MODULE.replace("__cublas$lt$matmul", "sort")) == 0
