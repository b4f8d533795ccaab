"""Arrays that are kept beside the memory of the process."""

import numpy as np
import psutil

from common.model.kept_arrays import KeptArrays


def test_arrays_of_any_form_come_back():
    matrix = np.arange(12, dtype=np.float64).reshape(3, 4)
    arrays = [
        matrix.T,
        np.float32(2.5).reshape(()),
        np.zeros((0, 3), np.int64),
        np.array([True, False]),
        matrix[:, 1:3],
    ]
    kept = KeptArrays(array for array in arrays)
    expected = [array.copy() for array in arrays]
    matrix[:] = -1.0
    for array, copy in zip(expected, kept.take(), strict=True):
        assert (array.dtype, array.shape) == (copy.dtype, copy.shape)
        np.testing.assert_array_equal(array, copy)


def test_what_is_kept_takes_no_memory_of_this_process():
    array = np.ones(4_000_000)
    before = psutil.Process().memory_info().rss
    kept = KeptArrays([array])
    assert psutil.Process().memory_info().rss - before < array.nbytes / 4
    np.testing.assert_array_equal(next(kept.take()), array)
