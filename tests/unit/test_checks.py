"""Argument checks: exact ratios, and the type and value that each check refuses."""

import math
import random
import time
from fractions import Fraction

import numpy as np
import pytest

from shmreplay.checks import as_count, as_deadline, as_ratio


@pytest.mark.parametrize("value, expected", [(1, 1), (7, 7), (np.int64(5), 5), (np.uint8(200), 200)])
def test_counts_are_plain_ints(value, expected):
    assert as_count(value, "n") == expected and type(as_count(value, "n")) is int


@pytest.mark.parametrize("value", [True, False, 1.0, 1.5, "3", None, [1], np.float64(2)])
def test_what_is_no_count(value):
    with pytest.raises(TypeError, match="batch_size must be a positive integer"):
        as_count(value, "batch_size")


@pytest.mark.parametrize("value", [0, -1, np.int64(0), -(2**70)])
def test_counts_below_one(value):
    with pytest.raises(ValueError, match="min_items must be a positive integer"):
        as_count(value, "min_items")


def test_a_deadline_is_a_monotonic_instant():
    before = time.monotonic()
    found = as_deadline(5)
    assert before + 5 <= found <= time.monotonic() + 5
    assert as_deadline(None) is None and as_deadline(math.inf) is None
    assert as_deadline(0) <= time.monotonic()
    assert as_deadline(Fraction(1, 2)) > before and as_deadline(np.float32(0.5)) > before


@pytest.mark.parametrize("value", [True, "1", [1], 1j])
def test_what_is_no_timeout(value):
    with pytest.raises(TypeError, match="timeout must be a non-negative number or None"):
        as_deadline(value)


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, -math.inf])
def test_negative_timeouts(value):
    with pytest.raises(ValueError, match="timeout must be non-negative"):
        as_deadline(value)


def test_floor_of_the_decimal_that_was_written():
    assert math.floor(100 * 0.29) == 28  # what binary arithmetic makes of it
    assert math.floor(100 * as_ratio(0.29)) == 29
    for hundredths in range(1, 1000):
        assert as_ratio(hundredths / 100) == Fraction(hundredths, 100)


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, Fraction(1)),
        (8.0, Fraction(8)),
        (Fraction(22, 7), Fraction(22, 7)),
        (1 / 3, Fraction(1, 3)),
        (1e-9, Fraction(1, 10**9)),
        (0.1234567891, Fraction(1234567891, 10**10)),
        (123456.75, Fraction(493827, 4)),
        (np.float32(0.5), Fraction(1, 2)),
        (np.int32(3), Fraction(3)),
    ],
)
def test_ratios(value, expected):
    assert as_ratio(value) == expected


def test_a_ratio_is_its_float_exactly():
    rng = random.Random(0)
    for _ in range(500):
        value = rng.choice([rng.random(), 10 ** rng.uniform(-8, 8), rng.randrange(1, 10**6) / rng.randrange(1, 10**6)])
        assert float(as_ratio(value)) == value


@pytest.mark.parametrize("value", [True, None, "1", 1j, [1.0]])
@pytest.mark.parametrize("allow_inf", [False, True])
def test_what_is_no_ratio(value, allow_inf):
    with pytest.raises(TypeError, match="samples_per_insert must be a finite positive number"):
        as_ratio(value, allow_inf=allow_inf)


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.5, math.nan, -math.inf])
@pytest.mark.parametrize("allow_inf", [False, True])
def test_ratios_that_are_not_positive(value, allow_inf):
    with pytest.raises(ValueError, match="samples_per_insert must be a finite positive number"):
        as_ratio(value, allow_inf=allow_inf)


def test_infinity_only_where_it_is_allowed():
    assert as_ratio(math.inf, allow_inf=True) is None
    with pytest.raises(ValueError, match="finite positive"):
        as_ratio(math.inf)


@pytest.mark.parametrize("value", [2**63, Fraction(1, 2**63), 1e300, 1e-300])
def test_ratios_beyond_64_bits(value):
    with pytest.raises(ValueError, match="64-bit"):
        as_ratio(value)
