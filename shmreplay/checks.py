"""Argument checks: values in, values out, or an exception that says what was asked and found."""

import math
import time
from fractions import Fraction
from numbers import Integral, Real

__all__ = ["as_count", "as_deadline", "as_ratio"]

_LARGEST = 1 << 62


def as_count(value, name: str) -> int:
    """A positive integer.

    Raises:
        TypeError: bool or not an integer. ValueError: below 1.

    Example:
        >>> as_count(3, "batch_size")
        3
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a positive integer. Got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be a positive integer. Got {value!r}.")
    return int(value)


def as_deadline(timeout) -> float | None:
    """The monotonic instant ``timeout`` seconds from now; None for no limit.

    Raises:
        TypeError: bool or not a number. ValueError: negative or NaN.

    Example:
        >>> as_deadline(None) is None
        True
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout must be a non-negative number or None. Got {timeout!r}.")
    if not timeout >= 0:
        raise ValueError(f"timeout must be non-negative. Got {timeout!r}.")
    return time.monotonic() + float(timeout) if math.isfinite(timeout) else None


def as_ratio(value, *, allow_inf: bool = False) -> Fraction | None:
    """``samples_per_insert`` as an exact fraction; None for infinity where that is allowed.

    A float is taken as the simple fraction that it prints as: 0.29 is 29/100. Floats from 1e-18 to 4e18 all fit.

    Raises:
        TypeError: bool or not a number. ValueError: not finite, not positive, or beyond 64-bit arithmetic.

    Example:
        >>> as_ratio(0.29)
        Fraction(29, 100)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"samples_per_insert must be a finite positive number. Got {value!r}.")
    if allow_inf and value == math.inf:
        return None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"samples_per_insert must be a finite positive number. Got {value!r}.")
    if isinstance(value, (Integral, Fraction)):
        ratio = Fraction(value)
    else:
        ratio = Fraction(float(value)).limit_denominator(10**6)
        if ratio <= 0 or float(ratio) != float(value):
            ratio = Fraction(repr(float(value)))
        if ratio.denominator >= _LARGEST:  # 17 digits after zeros: the nearest fraction that fits
            ratio = Fraction(float(value)).limit_denominator(_LARGEST - 1)
    if not ratio or ratio.numerator >= _LARGEST or ratio.denominator >= _LARGEST:
        raise ValueError(f"samples_per_insert must fit 64-bit fractions. Got {value!r}: choose a simpler ratio.")
    return ratio
