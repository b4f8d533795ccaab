"""Energy, energy-delay products and the record of a run, on traces whose joules are known."""

from dataclasses import asdict, replace

import numpy as np

from common.measurement.energy import energy_record
from common.measurement.power_trace import PowerTrace, Series

PHASES = ["idle_before", "idle_before", "startup", "training", "validation", "training", "test", "idle_after"]
SECONDS = np.array([0.0, 4.0, 6.0, 16.0, 18.0, 28.0, 29.0, 33.0])


def series(*joules):
    return Series(method="counter", watts=np.full(8, np.nan), joules=np.array(joules))


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


def record(*traces, used=("gpu0",)):
    return energy_record(traces, used_gpus={"node1": used} if used else {}, interval_seconds=0.5)


def values(made, name):
    """Return an attribute of each device of a record."""
    return [getattr(device, name) for device in made.devices]


def test_the_record_of_a_host_by_hand():
    made = record(ONE_HOST)
    phases = ["idle_before", "startup", "training", "validation", "test", "idle_after"]
    assert made.seconds_by_phase == dict(zip(phases, [4, 2, 20, 2, 1, 4], strict=True))
    assert made.devices[0].joules_by_phase == dict(zip(phases, [40, 25, 200, 30, 20, 48], strict=True))
    assert made.counted_phases == ["training", "validation", "test"]
    assert made.seconds == 23, "without start-up and idle time"
    assert values(made, "name") == ["cpu0", "gpu0", "gpu1"]
    assert values(made, "used") == [True, True, False]
    assert values(made, "joules") == [250, 2150, 368]
    assert values(made, "idle_watts_before") == [10, 15, 16] and values(made, "idle_watts_after") == [12, 17, 16]
    assert values(made, "joules_above_idle") == [250 - 11 * 23, 2150 - 16 * 23, 0]
    assert asdict(made.used_devices) == {
        "complete": True,
        "joules": 2400,
        "joules_by_phase": {"training": 2200, "validation": 130, "test": 70},
        "joules_above_idle": 2400 - 27 * 23,
        "edp_joule_seconds": 23 * 2400,
        "ed2p_joule_square_seconds": 23 * 23 * 2400,
    }
    assert (made.all_devices.joules, made.all_devices.edp_joule_seconds) == (2768, 23 * 2768)
    both = record(ONE_HOST, used=("gpu0", "gpu1"))
    assert both.used_devices == both.all_devices == made.all_devices
    assert record(ONE_HOST, used=()).used_devices.joules == 250


def test_without_idle_power_before_or_after_there_is_no_energy_above_idle():
    made = record(replace(ONE_HOST, phases=["startup" if phase == "idle_after" else phase for phase in PHASES]))
    assert (made.devices[0].idle_watts_before, made.devices[0].idle_watts_after) == (10, None)
    assert made.devices[0].joules_above_idle is None
    assert (made.used_devices.joules_above_idle, made.used_devices.joules) == (None, 2400)


def test_an_absent_device_makes_totals_incomplete_and_is_not_zero():
    made = record(replace(ONE_HOST, not_measured={"ram0": "not counted", "gpu2": "lost"}))
    assert values(made, "method") == [*["counter"] * 3, "absent", "absent"]
    assert values(made, "reason") == [*[None] * 3, "not counted", "lost"]
    assert (made.devices[3].name, made.devices[3].joules, made.devices[3].joules_by_phase) == ("ram0", None, {})
    assert not made.used_devices.complete
    assert made.used_devices.joules == 2400
    without_ram = record(replace(ONE_HOST, not_measured={"gpu2": "lost"}))
    assert without_ram.used_devices.complete and not without_ram.all_devices.complete


def test_without_measured_devices_there_are_no_totals():
    made = record(replace(ONE_HOST, series={}, not_measured={"cpu": "no", "ram": "no", "gpu": "no driver"}))
    assert values(made, "used") == [True, True, True]
    assert made.seconds == 23
    for totals in (made.used_devices, made.all_devices):
        assert not totals.complete and totals.joules_by_phase == {}
        assert totals.joules is totals.joules_above_idle is None
        assert totals.edp_joule_seconds is totals.ed2p_joule_square_seconds is None
    assert not record(replace(ONE_HOST, not_measured={"gpu": "no driver"}), used=()).devices[-1].used


def test_hosts_are_summed_and_the_slowest_one_determines_the_time():
    made = record(ONE_HOST, replace(ONE_HOST, host="node2", seconds=SECONDS * 2, series={"cpu0": CPU}))
    assert values(made, "name") == ["node1/cpu0", "node1/gpu0", "node1/gpu1", "node2/cpu0"]
    assert (made.seconds, made.seconds_by_phase["training"]) == (46, 40)
    assert (made.used_devices.joules, made.used_devices.edp_joule_seconds) == (2650, 46 * 2650)
    # Idle time is by each host's own clock.
    assert made.devices[3].joules_above_idle == 250 - (5 + 6) / 2 * 46
