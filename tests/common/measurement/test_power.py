"""The reader with a fake clock, and power.csv; its thread with the real one: `test_metering.py`."""

import numpy as np
import pytest
from made_power import Meter

from common.errors import UserError
from common.measurement.power import STARTUP, PowerReader, next_sample
from common.measurement.power_sources import Device, Sources
from common.measurement.power_trace import PowerTrace, Series
from common.run_folder.power_file import POWER_FILE, read_power, write_power

# The thread sleeps through a test that takes all samples itself; half of it is the shortest time for watts.
LONG = 4096.0


class Machine:
    """A reader of two fake devices: `counter` in joules, `power` in watts."""

    def __init__(self):
        self.now, self.counter, self.power = 1000.0, Meter(500.0), Meter(100.0)
        self.is_closed = False
        devices = [
            Device(name="cpu0", method="counter", read=self.counter),
            Device(name="gpu0", method="integral", read=self.power),
        ]
        sources = Sources(devices=devices, not_measured={"ram0": "not counted"}, close=self.close)
        self.reader = PowerReader(sources, host="here", interval_seconds=LONG, clock=lambda: self.now)
        self.reader.start()

    def close(self):
        self.is_closed = True

    def pass_time(self, seconds, *, joules=0.0, watts=None):
        self.now += seconds
        self.counter.value += joules
        if watts is not None:
            self.power.value = watts


def test_every_joule_belongs_to_the_phase_in_which_it_was_spent():
    machine = Machine()
    machine.pass_time(4096, joules=40960)
    machine.reader.mark("training")
    machine.pass_time(4096, joules=81920, watts=50)
    machine.reader.sample()
    machine.pass_time(2, joules=7, watts=30)
    machine.reader.mark("validation")
    machine.pass_time(3, joules=5, watts=20)
    trace = machine.reader.stop()
    assert trace.phases == [STARTUP, STARTUP, "training", "training", "validation"]
    assert trace.seconds.tolist() == [0, 4096, 8192, 8194, 8197]
    assert trace.series["cpu0"].joules.tolist() == [0, 40960, 81920, 7, 5]
    # Too soon after the previous sample for the power of a counter, but not for its energy.
    np.testing.assert_array_equal(trace.series["cpu0"].watts, [np.nan, 10, 20, np.nan, np.nan])
    assert trace.series["gpu0"].watts.tolist() == [100, 100, 50, 30, 20]
    assert trace.series["gpu0"].joules.tolist() == [0, 409600, 204800, 60, 60]
    assert (trace.host, trace.not_measured) == ("here", {"ram0": "not counted"})
    assert machine.is_closed


def test_a_failed_device_is_not_measured_and_the_others_continue():
    machine = Machine()
    machine.pass_time(2, joules=6)
    machine.reader.mark("training")
    machine.power.value = "GPU is lost"
    machine.pass_time(2, joules=6)
    machine.reader.mark("test")
    machine.power.value = "Unknown Error"  # the first reason is recorded
    machine.reader.sample()
    machine.power.value = 100.0  # readable again, but its energy in between is unknown
    machine.pass_time(2, joules=6)
    trace = machine.reader.stop()
    assert trace.series["cpu0"].joules.tolist() == [0, 6, 6, 0, 6]
    assert "gpu0" not in trace.series
    assert trace.not_measured["gpu0"] == "failed 4.0 s after the first sample: GPU is lost"


def test_a_constant_counter_is_not_measured():
    """Some virtual machines have one, but no machine uses 0 J."""
    machine = Machine()
    machine.pass_time(60)
    trace = machine.reader.stop()
    assert list(trace.series) == ["gpu0"]
    assert trace.not_measured["cpu0"].startswith("read 0 J")


def test_a_late_sample_shifts_no_other():
    for last, elapsed, following in [(0, 0.0, 1), (1, 0.4999, 2), (1, 0.5, 2), (1, 1.7, 4), (3, 2.0, 5)]:
        assert next_sample(last, elapsed_seconds=elapsed, interval_seconds=0.5) == following


def made_trace(host, *devices):
    """Numbers that need all their digits."""
    series = {
        device: Series(method="counter", watts=np.array([np.nan, 1 / 3 + at]), joules=np.array([0.0, 1 / 7 + at]))
        for at, device in enumerate(devices)
    }
    return PowerTrace(host=host, seconds=np.array([0.0, 0.1]), phases=["startup", "training"], series=series)


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ([("", "gpu0", "cpu0-die-1")], {"gpu0", "cpu0-die-1"}),
        ([("node1", "gpu0", "ram0"), ("node2", "gpu0")], {"node1/gpu0", "node1/ram0", "node2/gpu0"}),
        ([("",)], set()),
    ],
)
def test_a_file_that_was_read_is_written_again_with_the_same_bits(tmp_path, hosts, names):
    file = tmp_path / POWER_FILE
    write_power(file, [made_trace(*host) for host in hosts])
    text = file.read_text()
    header, *lines = text.splitlines()
    assert header == "seconds,phase,device,method,watts,joules"
    assert {line.split(",")[2] for line in lines} == names and (not names or repr(1 / 7) in text)
    write_power(file, read_power(file))
    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


GOOD = "seconds,phase,device,method,watts,joules\n0.0,training,gpu0,counter,,0.0\n0.5,training,gpu0,counter,4.0,2.0\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.5,training", "-0.5,training"),
        ("2.0\n", "nan\n"),
        ("4.0", "-4.0"),
        ("gpu0", "fan0"),
        ("counter,4", "guess,4"),
        ("counter,4", "integral,4"),
        ("0.0,training", "0.7,training"),
        ("4.0,2.0\n", "4.0,2.0\n0.5,training,cpu0,counter,4.0,2.0\n"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(tmp_path, old, new):
    """Damaged files: `fuzz/test_files.py`."""
    path = tmp_path / POWER_FILE
    path.write_text(GOOD)
    read_power(path)
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UserError, match=r"is not a valid power trace\. Received: .*\. Restore the file"):
        read_power(path)
