"""Metered runs: the power of a fake machine, read around the phases of real runs."""

import json
import platform
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

import pytest
from fake_ranks import alone, run_ranks
from jobs import Job, do_job, start_of
from made_power import make_zone

from common.config import EnergyConfig
from common.errors import UserError
from common.measurement.metering import Meter, hidden_gpus, used_gpu
from common.measurement.timing import Phases
from common.run_folder.power_file import read_power
from common.run_folder.records import read_run

WRAPS_AT = 60_000_000  # the package's counter
ALL_PHASES = ["startup", "idle_before", "other", "training", "validation", "test", "idle_after"]


class Machine:
    """A powercap tree of a package and its memory, which spend energy."""

    def __init__(self, folder):
        zone = folder / "intel-rapl:0"
        self.files = [
            make_zone(zone, "package-0", microjoules=0, largest=WRAPS_AT),
            make_zone(zone / "intel-rapl:0:0", "dram", microjoules=5, largest=10**12),
        ]

    def spend(self, *joules):
        for file, more in zip(self.files, joules, strict=True):
            microjoules = int(file.read_text()) + int(more * 1e6)
            new = file.with_name("new")
            new.write_text(str(microjoules % WRAPS_AT if file is self.files[0] else microjoules))
            new.replace(file)


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
    config = EnergyConfig(energy=True, power_interval=0.05, idle_seconds=0.2, powercap_folder=str(tmp_path))
    machine = Machine(tmp_path)
    results = run_ranks(2, lambda comm: measure(config, comm, spend=machine.spend))
    assert [len(metered.traces) for metered in results] == [1, 1]  # two ranks, one host, one reader
    record, (trace,) = results[0].record, results[0].traces
    assert record == results[1].record
    around = ["startup", "idle_before", "startup", "other"], ["idle_after", "other"]
    phases = [phase for name, *_ in SPENT for phase in (name, "other")]
    assert [phase for phase, _ in groupby(trace.phases)] == [*around[0], *phases, *around[1]]
    assert trace.phases.count("idle_after") > 1, "a thread samples, too"
    devices = {device.name: device for device in record.devices}
    for name, training, validation, test in (("cpu0", 43.0, 50.0, 7.0), ("ram0", 6.0, 0.5, 1.0)):
        device = devices[name]
        assert (device.method, device.used, device.reason) == ("counter", True, None)
        phases = {phase: joules for phase, joules in device.joules_by_phase.items() if joules}
        assert phases == pytest.approx({"training": training, "validation": validation, "test": test})
        assert (device.idle_watts_before, device.idle_watts_after) == (0, 0)
    assert list(record.seconds_by_phase) == ALL_PHASES
    assert all(seconds > 0 for seconds in record.seconds_by_phase.values())
    assert record.seconds_by_phase["idle_after"] >= 0.2
    assert record.used_devices.joules == pytest.approx(107.5)
    assert not [thread for thread in threading.enumerate() if thread.name == "power"]


def test_a_host_of_servers_alone_is_refused(tmp_path):
    """Its energy would be missing in the sums."""
    config = EnergyConfig(energy=True, idle_seconds=0, powercap_folder=str(tmp_path))
    with pytest.raises(UserError, match=r"servers alone on elsewhere\."):
        Meter(config, comm=replace(alone(), server_hosts=("elsewhere", platform.node())), device="cpu", phases=Phases())


def test_gpus_that_the_reader_of_a_host_does_not_see_are_found():
    """As where a batch system shows each rank its own GPU only."""
    own = [("a", "GPU-1", ["GPU-1"]), ("a", "GPU-2", []), ("b", "GPU-3", ["GPU-3", "GPU-4"]), ("b", "GPU-4", [])]
    assert hidden_gpus(own) == [1]
    assert hidden_gpus([("a", None, ["GPU-1"]), ("a", "GPU-2", ["GPU-2", ""])]) == []
    assert hidden_gpus([("a", "GPU-1", []), ("a", "GPU-2", [])]) == [], "they could not be listed"


@pytest.mark.parametrize(
    ("number", "visible", "expected"),
    [(1, None, "gpu1"), (0, "3", "gpu3"), (1, "2, 0", "gpu0"), (0, "GPU-7,GPU-5a", "gpu1"), (1, "0,9,2", "gpu1")],
)
def test_the_gpu_that_a_process_uses(number, visible, expected):
    """CUDA stops at the first invalid entry."""
    gpus = [("0", "GPU-00", "gpu0"), ("1", "GPU-7a", "gpu1"), ("2", "GPU-5a", "gpu2"), ("3", "", "gpu3")]
    assert used_gpu(number, visible, gpus) == expected
    assert used_gpu(number, visible, []) == f"gpu{number}"  # they could not be listed


@pytest.mark.ranks
@pytest.mark.ci
def test_a_metered_run_of_two_ranks(framework, tmp_path):
    machine = Machine(tmp_path / "powercap")
    settings = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "mlp", "--epochs", "2", "--name", "metered"]
    settings += ["--validation-share", "0.1", "--energy", "--power-interval", "0.05", "--idle-seconds", "0.5"]
    settings += ["--slow", "1:100"]  # else it could end before this process spends anything
    job = Job("metered", (*settings, "--powercap-folder", str(tmp_path / "powercap")))
    with ThreadPoolExecutor() as pool:
        start = start_of(framework, launcher="mpirun2", arguments=())
        running = pool.submit(do_job, job, start=start, folder=tmp_path)
        while not running.done():
            machine.spend(0.2, 0.05)
            time.sleep(0.005)
    ended, _ = running.result()
    assert ended.code == 0, ended.stderr
    folder = tmp_path / "runs" / "metered"
    energy = read_run(folder).record.energy
    assert list(energy.seconds_by_phase) == ALL_PHASES
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
