"""Learning rates: numbers by hand; `torch_checks.py` compares them with PyTorch's schedulers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import ScheduleConfig
from common.training.schedule import learning_rates, scale_factor


def rates(size=4, steps=12, **settings):
    """Learning rates from a base of 0.1, 4 steps an epoch."""
    schedule = ScheduleConfig(**settings)
    return learning_rates(schedule, base=0.1, size=size, steps=steps, steps_per_epoch=4)


def test_scale_factors():
    assert [scale_factor(scaling, size=4) for scaling in ("linear", "sqrt", "none")] == [4.0, 2.0, 1.0]


def test_linear_scaling_with_a_warm_up_of_one_epoch():
    # From 0.1 to 0.4 in four equal steps of 0.075.
    np.testing.assert_allclose(rates(warmup_epochs=1), [0.175, 0.25, 0.325, *[0.4] * 9], rtol=1e-15)


def test_square_root_scaling_with_a_warm_up_of_half_an_epoch():
    np.testing.assert_allclose(rates(lr_scaling="sqrt", warmup_epochs=0.5, steps=4), [0.15, 0.2, 0.2, 0.2], rtol=1e-15)


def test_without_warm_up_the_first_step_has_the_full_rate():
    np.testing.assert_array_equal(rates(warmup_epochs=0), [0.4] * 12)
    np.testing.assert_array_equal(rates(lr_scaling="none", warmup_epochs=0), [0.1] * 12)


QUARTERS = st.integers(0, 80).map(lambda quarters: quarters / 4)


@given(warmup=QUARTERS, scaling=st.sampled_from(["linear", "sqrt", "none"]))
def test_one_rank_has_nothing_to_warm_up_to(warmup, scaling):
    np.testing.assert_array_equal(rates(size=1, warmup_epochs=warmup, lr_scaling=scaling), [0.1] * 12)


def test_cosine_by_hand():
    # After 4 steps of warm-up 8 are left; step s of them has half of 1 + cos(pi s / 8).
    expected = [0.4 * 0.5 * (1 + np.cos(np.pi * step / 8)) for step in range(8)]
    np.testing.assert_allclose(rates(decay="cosine")[4:], expected, rtol=1e-15)
    np.testing.assert_allclose(rates(decay="cosine")[:4], rates(decay="none")[:4], rtol=0)
    assert rates(decay="cosine")[8] == pytest.approx(0.2)


def test_cosine_ends_near_zero_and_always_falls():
    long = rates(decay="cosine", steps=4000)
    assert 0 < long[-1] < 1e-6 * long.max()
    assert (np.diff(long[4:]) < 0).all()


def test_steps_by_hand():
    stepped = rates(decay="step", decay_epochs=1, decay_factor=0.5, steps=16)
    np.testing.assert_allclose(stepped[4:], [0.4] * 4 + [0.2] * 4 + [0.1] * 4, rtol=1e-15)


def test_decay_waits_for_the_warm_up():
    stepped = rates(decay="step", decay_epochs=0.5, decay_factor=0.1, warmup_epochs=2, steps=12)
    np.testing.assert_allclose(stepped[7:], [0.4, 0.4, 0.4, 0.04, 0.04], rtol=1e-12)


def test_a_warm_up_longer_than_the_run_does_not_arrive():
    assert rates(warmup_epochs=6)[-1] == pytest.approx(0.1 + 0.3 * 12 / 24)
    assert np.isfinite(rates(warmup_epochs=6, decay="cosine")).all()


@given(
    size=st.integers(1, 64),
    steps=st.integers(0, 50),
    warmup=QUARTERS,
    decay=st.sampled_from(["none", "cosine", "step"]),
)
def test_rates_are_between_zero_and_the_scaled_one(size, steps, warmup, decay):
    found = rates(size=size, steps=steps, warmup_epochs=warmup, decay=decay, decay_epochs=1.0)
    assert found.shape == (steps,) and found.dtype == np.float64
    assert (found > 0).all() and (found <= 0.1 * size * (1 + 1e-12)).all()
