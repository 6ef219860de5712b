"""Sizes that batches are rounded to, so that kernels meet few different shapes."""


def rounded_up(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... (2^n and 3 * 2^n) that is at least `count`.

    >>> [rounded_up(count) for count in (1, 5, 13, 100, 129)]
    [1, 6, 16, 128, 192]
    """
    power = 1 << max(0, count - 1).bit_length()
    three_quarters = power // 4 * 3
    return three_quarters if three_quarters >= count else power
