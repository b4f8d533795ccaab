"""Energy, energy-delay products and the record of a run, on traces whose joules are known."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from common.errors import UserError
from common.measurement.energy import (
    EnergyRecord,
    energy_above_idle,
    energy_delay,
    energy_delay_squared,
    energy_record,
    joules_by_phase,
    normalized,
    sampled_energy,
    seconds_by_phase,
)
from common.measurement.power_trace import PowerTrace, Series

PHASES = ["idle_before", "idle_before", "startup", "training", "validation", "training", "test", "idle_after"]
SECONDS = np.array([0.0, 4.0, 6.0, 16.0, 18.0, 28.0, 29.0, 33.0])
COUNTED_SECONDS = 10 + 2 + 10 + 1
UNKNOWN = np.full(8, np.nan)


def series(*joules):
    return Series(method="counter", watts=UNKNOWN, joules=np.array(joules))


# Idle: 10 W before and 12 W after; 100 J training twice, 30 J validation, 20 J test.
CPU = series(0, 40, 25, 100, 30, 100, 20, 48)
BUSY_GPU = series(0, 60, 90, 1000, 100, 1000, 50, 68)
IDLE_GPU = series(0, 64, 32, 160, 32, 160, 16, 64)
ONE_HOST = PowerTrace(
    host="node1",
    seconds=SECONDS,
    phases=PHASES,
    series={"cpu0": CPU, "gpu0": BUSY_GPU, "gpu1": IDLE_GPU},
)


def record(*traces, used=None):
    return energy_record(traces, used_gpus={"node1": ["gpu0"]} if used is None else used, interval_seconds=0.5)


def test_sampled_energy_is_interval_times_sum():
    watts = np.array([[100.0, 16.0], [120.0, 16.0], [140.0, 17.0]])
    assert sampled_energy(watts, interval_seconds=0.5).tolist() == [180, 24.5]


def test_formulas():
    assert energy_delay(10, 50) == 500
    assert energy_delay_squared(10, 50) == 5000
    assert energy_above_idle(50, idle_watts=2, seconds=10) == 30


def test_repeated_phases_are_summed():
    assert seconds_by_phase(ONE_HOST) == {
        "idle_before": 4, "startup": 2, "training": 20, "validation": 2, "test": 1, "idle_after": 4,
    }  # fmt: skip
    assert joules_by_phase(ONE_HOST, "cpu0") == {
        "idle_before": 40, "startup": 25, "training": 200, "validation": 30, "test": 20, "idle_after": 48,
    }  # fmt: skip


def test_start_up_and_idle_time_are_not_in_the_totals():
    made = record(ONE_HOST)
    assert made.counted_phases == ["training", "validation", "test"]
    assert made.seconds == COUNTED_SECONDS
    assert [device.joules for device in made.devices] == [250, 2150, 368]
    assert made.used_devices.joules == 2400
    assert made.used_devices.joules_by_phase == {"training": 2200, "validation": 130, "test": 70}
    assert made.used_devices.complete
    assert made.used_devices.edp_joule_seconds == 23 * 2400
    assert made.used_devices.ed2p_joule_square_seconds == 23 * 23 * 2400


def test_idle_devices_are_in_all_devices_only():
    made = record(ONE_HOST)
    assert [(device.name, device.used) for device in made.devices] == [
        ("cpu0", True), ("gpu0", True), ("gpu1", False),
    ]  # fmt: skip
    assert made.all_devices.joules == 2768
    assert made.all_devices.edp_joule_seconds == 23 * 2768
    both = record(ONE_HOST, used={"node1": ["gpu0", "gpu1"]})
    assert both.used_devices == both.all_devices == made.all_devices
    assert record(ONE_HOST, used={}).used_devices.joules == 250


def test_energy_above_idle_uses_the_mean_of_before_and_after():
    made = record(ONE_HOST)
    assert [(device.idle_watts_before, device.idle_watts_after) for device in made.devices] == [
        (10, 12), (15, 17), (16, 16),
    ]  # fmt: skip
    assert [device.joules_above_idle for device in made.devices] == [250 - 11 * 23, 2150 - 16 * 23, 0]
    assert made.used_devices.joules_above_idle == 2400 - 27 * 23


def test_without_idle_power_before_or_after_there_is_no_energy_above_idle():
    trace = replace(ONE_HOST, phases=["startup" if phase == "idle_after" else phase for phase in PHASES])
    made = record(trace)
    assert made.devices[0].idle_watts_before == 10
    assert made.devices[0].idle_watts_after is None
    assert made.devices[0].joules_above_idle is None
    assert made.used_devices.joules_above_idle is None
    assert made.used_devices.joules == 2400


def test_an_absent_device_makes_totals_incomplete_and_is_not_zero():
    made = record(replace(ONE_HOST, not_measured={"ram0": "not counted", "gpu2": "lost"}))
    absent = {device.name: device for device in made.devices if device.method == "absent"}
    assert set(absent) == {"ram0", "gpu2"}
    assert absent["ram0"].reason == "not counted"
    assert (absent["ram0"].joules, absent["ram0"].joules_by_phase) == (None, {})
    assert not made.used_devices.complete
    assert made.used_devices.joules == 2400
    without_ram = record(replace(ONE_HOST, not_measured={"gpu2": "lost"}))
    assert without_ram.used_devices.complete
    assert not without_ram.all_devices.complete


def test_without_measured_devices_there_are_no_totals():
    made = record(replace(ONE_HOST, series={}, not_measured={"cpu": "no", "ram": "no", "gpu": "no driver"}))
    assert [device.used for device in made.devices] == [True, True, True]
    assert made.seconds == COUNTED_SECONDS
    for totals in (made.used_devices, made.all_devices):
        assert asdict(totals) == {
            "complete": False,
            "joules": None,
            "joules_by_phase": {},
            "joules_above_idle": None,
            "edp_joule_seconds": None,
            "ed2p_joule_square_seconds": None,
        }
    assert not record(replace(ONE_HOST, not_measured={"gpu": "no driver"}), used={}).devices[-1].used


def test_hosts_are_summed_and_the_slowest_one_determines_the_time():
    slow = replace(ONE_HOST, host="node2", seconds=SECONDS * 2, series={"cpu0": CPU})
    made = record(ONE_HOST, slow)
    assert [device.name for device in made.devices] == ["node1/cpu0", "node1/gpu0", "node1/gpu1", "node2/cpu0"]
    assert made.seconds == 46
    assert made.seconds_by_phase["training"] == 40
    assert made.used_devices.joules == 2650
    assert made.used_devices.edp_joule_seconds == 46 * 2650
    # Idle time is by each host's own clock.
    assert made.devices[3].joules_above_idle == 250 - (5 + 6) / 2 * 46


def test_a_used_gpu_that_does_not_exist_is_a_bug():
    with pytest.raises(ValueError, match="node1 has no gpu7"):
        record(ONE_HOST, used={"node1": ["gpu7"]})


def test_values_are_divided_by_the_base():
    assert normalized({"1 GPU": 4.0, "2 GPUs": 3.0}, base="1 GPU") == {"1 GPU": 1, "2 GPUs": 0.75}


@pytest.mark.parametrize("base", ["CPU", "nothing"])
def test_an_unknown_or_zero_base_is_refused(base):
    with pytest.raises(UserError, match=rf"Received: {base}\. Choose one of 1 GPU, nothing"):
        normalized({"1 GPU": 4.0, "nothing": 0.0}, base=base)


def test_the_record_survives_json_and_has_no_other_fields():
    made = record(replace(ONE_HOST, not_measured={"ram0": "not counted"}))
    adapter = TypeAdapter(EnergyRecord)
    text = adapter.dump_json(made)
    assert adapter.validate_json(text, strict=True) == made
    with pytest.raises(ValidationError):
        adapter.validate_json(text.replace(b'"seconds":', b'"minutes":', 1), strict=True)
