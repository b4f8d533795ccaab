"""Metered runs: the power of a fake machine, read around the phases of real runs."""

import json
import threading
import time

import pytest
from fake_ranks import run_ranks
from frameworks import need
from made_power import make_zone
from processes import finish, launcher_command, start_command, train_command

from common.config import EnergyConfig
from common.measurement.energy import describe_energy
from common.measurement.metering import Meter, used_gpu
from common.measurement.timing import Phases
from common.run_folder.power_file import read_power
from common.run_folder.records import read_run

DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "mlp"]
WATTS = {"package-0": 40.0, "dram": 10.0}


class Machine(threading.Thread):
    """A powercap tree whose counters increase during the test; the package's wraps around sometimes."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        zone = folder / "intel-rapl:0"
        self.files = {
            "package-0": make_zone(zone, "package-0", microjoules=0, largest=60_000_000),
            "dram": make_zone(zone / "intel-rapl:0:0", "dram", microjoules=5, largest=10**12),
        }
        self.ended = threading.Event()

    def run(self):
        began = time.monotonic()
        while not self.ended.wait(0.005):
            for name, file in self.files.items():
                new = file.with_name("new")
                microjoules = int((time.monotonic() - began) * WATTS[name] * 1e6)
                new.write_text(str(microjoules % 60_000_000 if name == "package-0" else microjoules + 5))
                new.replace(file)


@pytest.fixture
def machine(tmp_path):
    folder = tmp_path / "powercap"
    made = Machine(folder)
    made.start()
    yield folder
    made.ended.set()
    made.join()


# Joules of the fake machine in each phase: package, memory. The package's counter wraps around in the second.
SPENT = [("training", 31.0, 4.0), ("validation", 50.0, 0.5), ("training", 12.0, 2.0), ("test", 7.0, 1.0)]


def measure(config, comm, *, spend):
    phases = Phases()
    meter = Meter(config, comm=comm, device="cpu", phases=phases)
    phases.startup_ends()
    for name, package, memory in SPENT:
        with phases.phase(name, synchronize=lambda: None):
            if comm.rank == 0:
                spend(package, memory)
    return meter.finish()


def test_joules_belong_to_the_phase_in_which_they_were_spent(tmp_path):
    zone = tmp_path / "intel-rapl:0"
    files = [
        make_zone(zone, "package-0", microjoules=0, largest=60_000_000),
        make_zone(zone / "intel-rapl:0:0", "dram", microjoules=5, largest=10**12),
    ]

    def spend(*joules):
        for file, more in zip(files, joules, strict=True):
            microjoules = int(file.read_text()) + int(more * 1e6)
            new = file.with_name("new")
            new.write_text(str(microjoules % 60_000_000 if file is files[0] else microjoules))
            new.replace(file)

    config = EnergyConfig(energy=True, power_interval=0.05, idle_seconds=0.2, powercap_folder=str(tmp_path))
    results = run_ranks(2, lambda comm: measure(config, comm, spend=spend))
    for metered in results:
        assert len(metered.traces) == 1  # two ranks, one host, one reader
    record = results[0].record
    assert record == results[1].record
    devices = {device.name: device for device in record.devices}
    for name, training, validation, test in (("cpu0", 43.0, 50.0, 7.0), ("ram0", 6.0, 0.5, 1.0)):
        device = devices[name]
        assert (device.method, device.used, device.reason) == ("counter", True, None)
        phases = {phase: joules for phase, joules in device.joules_by_phase.items() if joules}
        assert phases == pytest.approx({"training": training, "validation": validation, "test": test})
        assert (device.idle_watts_before, device.idle_watts_after) == (0, 0)
        assert device.joules == pytest.approx(training + validation + test)
    assert list(record.seconds_by_phase) == [
        "startup", "idle_before", "other", "training", "validation", "test", "idle_after",
    ]  # fmt: skip
    assert all(seconds > 0 for seconds in record.seconds_by_phase.values())
    assert record.seconds_by_phase["idle_after"] >= 0.2
    totals = record.used_devices
    assert totals.joules == pytest.approx(107.5)
    assert totals.edp_joule_seconds == pytest.approx(record.seconds * 107.5)
    assert totals.ed2p_joule_square_seconds == pytest.approx(record.seconds**2 * 107.5)
    assert not [thread for thread in threading.enumerate() if thread.name == "power"]


def test_an_unreadable_device_is_not_measured_and_has_a_reason(tmp_path):
    config = EnergyConfig(energy=True, power_interval=0.1, idle_seconds=0.0, powercap_folder=str(tmp_path / "none"))
    (metered,) = run_ranks(1, lambda comm: measure(config, comm, spend=lambda *_: None))
    assert {device.method for device in metered.record.devices} == {"absent"}
    assert all(device.reason and device.joules is None for device in metered.record.devices)
    assert metered.record.all_devices.joules is None
    lines = describe_energy(metered.record).splitlines()
    assert len(lines) == len(metered.record.devices)
    assert all(": not measured: " in line for line in lines)


@pytest.mark.parametrize(
    ("number", "visible", "expected"),
    [
        (0, None, "gpu0"),
        (1, None, "gpu1"),
        (0, "3", "gpu3"),
        (1, "2, 0", "gpu0"),
        (0, "GPU-5a,GPU-7", "gpu2"),
    ],
)
def test_the_gpu_that_a_process_uses(number, visible, expected):
    names = {"gpu0": "GPU-00", "gpu1": "GPU-7a", "gpu2": "GPU-5a", "gpu3": ""}
    gpus = [(name[-1], uuid, name) for name, uuid in names.items()]
    assert used_gpu(number, visible, gpus) == expected
    assert used_gpu(number, visible, []) == f"gpu{number}"  # they could not be listed


@pytest.mark.ranks
@pytest.mark.ci
def test_a_metered_run_of_two_ranks(framework, machine, tmp_path):
    settings = [*DATA, "--epochs", "2", "--validation-share", "0.1", "--name", "metered", "--energy"]
    settings += ["--power-interval", "0.05", "--idle-seconds", "0.5", "--powercap-folder", str(machine)]
    command = [*launcher_command("mpirun2"), *train_command(framework, settings)]
    ended = finish(start_command(command, folder=tmp_path), within_seconds=300)
    assert ended.code == 0, ended.stderr
    folder = tmp_path / "runs" / "metered"
    run = read_run(folder)
    energy = run.record.energy
    assert list(energy.seconds_by_phase) == [
        "startup", "idle_before", "other", "training", "validation", "test", "idle_after",
    ]  # fmt: skip
    assert energy.used_devices.joules is not None and energy.used_devices.joules > 0
    assert f"energy {energy.used_devices.joules:,.1f} J" in ended.stdout
    assert "gpu: not measured: " in ended.stdout
    (trace,) = read_power(folder / "power.csv")
    assert set(trace.series) == {"cpu0", "ram0"}
    for device in energy.devices:
        if device.joules is not None:
            assert trace.series[device.name].joules.sum() == pytest.approx(sum(device.joules_by_phase.values()))
    assert {"training", "validation", "test"} <= set(trace.phases)
    assert json.loads((folder / "run.json").read_text())["energy"]["interval_seconds"] == 0.05


@pytest.mark.ranks
@pytest.mark.ci
def test_a_run_that_is_not_metered_reads_nothing(tmp_path):
    need("torch")
    settings = [*DATA, "--max-steps", "2", "--name", "timed"]
    ended = finish(start_command(train_command("torch", settings), folder=tmp_path), within_seconds=300)
    assert ended.code == 0, ended.stderr
    assert read_run(tmp_path / "runs/timed").record.energy is None
    assert not (tmp_path / "runs/timed/power.csv").exists()
