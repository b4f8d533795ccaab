"""Devices that are found and their readings, on a fake powercap tree and a fake NVML."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from made_power import MadeGpu, MadeNvml, make_zone

from common.measurement.power_sources import ReadingError, find_sources

NO_GPU = MadeNvml([])


def devices(powercap, nvml=NO_GPU):
    return {device.name: device for device in find_sources(powercap=powercap, nvml=nvml).devices}


def not_measured(powercap, nvml=NO_GPU):
    return find_sources(powercap=powercap, nvml=nvml).not_measured


def test_packages_and_their_ram_are_found_and_nothing_is_counted_twice(tmp_path):
    """As listed by the kernel: all zones in one folder, and subzones in their packages, too."""
    for number in (0, 1):
        package = tmp_path / f"intel-rapl:{number}"
        make_zone(package, f"package-{number}", microjoules=5)
        make_zone(package / f"intel-rapl:{number}:0", "core", microjoules=5)
        make_zone(package / f"intel-rapl:{number}:1", "dram", microjoules=5)
        (tmp_path / f"intel-rapl:{number}:1").symlink_to(package / f"intel-rapl:{number}:1")
    make_zone(tmp_path / "intel-rapl:2", "psys", microjoules=5)
    make_zone(tmp_path / "intel-rapl-mmio:0", "package-0", microjoules=5)
    make_zone(tmp_path / "intel-rapl:3", "package-2-die-1", microjoules=5)
    (tmp_path / "intel-rapl").mkdir()
    by_name = devices(tmp_path)
    assert list(by_name) == ["cpu0", "ram0", "cpu1", "ram1", "cpu2-die-1"]
    assert {device.method for device in by_name.values()} == {"counter"}
    reasons = not_measured(tmp_path)
    assert reasons.pop("gpu") == "NVML found no GPU"
    assert list(reasons) == ["ram2-die-1"] and "no dram zone" in reasons["ram2-die-1"]


def test_a_counter_reads_the_joules_since_it_was_found_through_every_wrap(tmp_path):
    counter = make_zone(tmp_path / "intel-rapl:0", "package-0", microjoules=9_000_000, largest=10_000_000)
    read = devices(tmp_path)["cpu0"].read
    readings = []
    for microjoules in (9_000_000, 9_500_000, 500_000, 8_000_000, 250_000):
        counter.write_text(f"{microjoules}\n")
        readings.append(read())
    assert readings == [0, 0.5, 1.5, 9, 11.25]
    (tmp_path / "intel-rapl:0/max_energy_range_uj").unlink()
    read = devices(tmp_path)["cpu0"].read
    counter.write_text("8")
    with pytest.raises(ReadingError, match="decreased from 250000 to 8"):
        read()


@pytest.mark.parametrize("powercap", [".", "missing"])
def test_a_machine_without_rapl_reports_it(tmp_path, powercap):
    reasons = not_measured(tmp_path / powercap)
    assert set(reasons) == {"cpu", "ram", "gpu"}
    assert "no RAPL package" in reasons["cpu"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory$"),
        ("many", "does not contain an integer$"),
        (PermissionError(13, "Permission denied"), "Permission denied; RAPL needs root$"),
    ],
)
def test_a_counter_that_cannot_be_read_is_not_measured_with_the_reason(tmp_path, content, reason, monkeypatch):
    counter = make_zone(tmp_path / "intel-rapl:0", "package-0", microjoules=5)
    make_zone(tmp_path / "intel-rapl:0" / "intel-rapl:0:0", "dram", microjoules=5)
    counter.unlink()
    if content is not None:
        counter.write_text(str(content))
    read_text = Path.read_text

    def read(path, encoding):
        if path == counter and isinstance(content, PermissionError):  # root, who may run this, can read any file
            raise content
        return read_text(path, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", read)
    received = not_measured(tmp_path)["cpu0"]
    assert received.startswith(str(counter))
    assert re.search(reason, received)
    assert list(devices(tmp_path)) == ["ram0"]


def test_a_gpu_is_read_by_its_counter_or_else_by_its_power(tmp_path):
    new = MadeGpu(millijoules=7_000_000_000_000_001)
    old = MadeGpu(millijoules="Not Supported", milliwatts=120_500)
    by_name = devices(tmp_path, MadeNvml([new, old]))
    assert [(gpu.name, gpu.method, gpu.uuid) for gpu in by_name.values()] == [
        ("gpu0", "counter", "GPU-0"),
        ("gpu1", "integral", "GPU-1"),
    ]
    assert (by_name["gpu0"].read(), by_name["gpu1"].read()) == (0, 120.5)
    new.millijoules, old.milliwatts = 7_000_000_000_000_251, 16_000
    assert (by_name["gpu0"].read(), by_name["gpu1"].read()) == (0.25, 16)


def test_an_unreadable_gpu_does_not_affect_the_others_and_one_that_fails_later_has_a_reason(tmp_path):
    silent, gpu = MadeGpu(millijoules="Not Supported", milliwatts="GPU is lost"), MadeGpu()
    nvml = MadeNvml([silent, gpu])
    by_name = devices(tmp_path, nvml)
    assert list(by_name) == ["gpu1"]
    assert not_measured(tmp_path, nvml)["gpu0"] == "NVML: GPU is lost"
    gpu.millijoules = "GPU is lost"
    with pytest.raises(ReadingError, match="GPU is lost"):
        by_name["gpu1"].read()


@pytest.mark.parametrize(
    ("nvml", "reason", "calls"),
    [
        (MadeNvml([], init="Shared Library Not Found"), "is there an NVIDIA driver", ["init"]),
        (MadeNvml([], count="Driver Not Loaded"), "cannot list GPUs: Driver Not Loaded", ["init", "shutdown"]),
        (MadeNvml([MadeGpu()]), None, ["init", "shutdown"]),
    ],
)
def test_nvml_is_shut_down_if_it_was_started(tmp_path, nvml, reason, calls):
    sources = find_sources(powercap=tmp_path, nvml=nvml)
    sources.close()
    assert nvml.calls == calls
    assert ("gpu" in sources.not_measured) == (reason is not None)
    assert reason is None or reason in sources.not_measured["gpu"]


if find_spec("pynvml"):  # no skip, which counts as a failure where nothing may be missing

    def test_the_fake_nvml_has_names_of_the_real_one():
        import pynvml

        made = {name for name in dir(MadeNvml) if name.lower().startswith("nvml")}
        assert len(made) == 8
        assert made <= set(dir(pynvml))
