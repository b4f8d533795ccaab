"""A folder like that of the raw files of the thesis, small and with numbers that can be added by hand.

Every epoch of run r (from 0) of a folder trains `seconds + r / 2` seconds, the first 2 seconds more; validation takes
5.25 seconds. Validation accuracy rises by 0.005 per epoch to 0.5.
"""

import csv
import json
import os
from pathlib import Path

from analysis.runs.published import read_published
from analysis.thesis.comparison import ENVIRONMENTS
from analysis.thesis.runs import METERED_FOLDERS, TIMED_FOLDERS
from analysis.thesis.tables import EPOCHS, FIRST_TABLE_HEADER, GENERAL_HEADER
from analysis.thesis.traces import SUMS_HEADER, TRACE_HEADER

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "thesis"
ORIGINALS = Path(os.environ.get("THESIS_DATA", BESIDE))  # the raw files, which are no part of the project
RESULTS = Path("Resultados_experimentos")
STUDY = Path("Datos_Capitulos/Datos_Capitulo_3/Experimentos_parametros")
HYBRID = Path("Datos_Capitulos/Datos_Capitulo_3/Modelo hibrido")
VALIDATION_SECONDS = 5.25
# At work from the sample after the rise on: three samples count.
FIRST_GPU_WATTS = (47.0, 16.0, 16.0, 90.0, 100.0, 120.0, 110.0)


def make_thesis(folder):
    """Write all files; return the folder."""
    results = folder / RESULTS
    gpus = {"1GPU": "cuda:0", "Distribuido_1GPU": ["cuda:0"], "Distribuido_2GPU": ["cuda:0", "cuda:1"]}
    for number, (name, devices) in enumerate(gpus.items()):
        environment = results / f"Resultados_{name}"
        make_runs(environment, count=2, seconds=60.0 - 10 * number, devices=devices)
        for trace in range(3):
            separator = "-" if trace == 1 else "_"
            write(environment / f"energia{trace}.dat", trace_text(separator=separator, second_gpu=16.0 + trace))
        write(environment / "consumos_medios.dat", sums_text(seconds=9.0), line_end="\r\n")
    cpu, again = results / "Resultados_CPU", results / "Resultados_CPU_2"
    make_runs(cpu, count=1, seconds=600.0, devices="cpu")
    make_runs(again, count=1, seconds=500.0, devices="cpu")
    write(cpu / "General.csv", general_text([600.0]) + general_text([500.0]).splitlines()[1] + "\n")
    write(cpu / "Precisiones.csv", (cpu / "Precisiones.csv").read_text().replace(".", ","))
    write(cpu / "consumos.dat", sums_text(seconds=100.0), line_end="\r\n")
    smaller = results / "Resultados_distribuido_2GPU_64"
    make_runs(smaller, count=2, seconds=35.0, devices=["cuda:0", "cuda:1"], batch_size=64)
    commas = (smaller / "Precisiones.csv").read_text().replace(",", ";").replace(".", ",")
    write(smaller / "Precisiones.csv", commas, line_end="\r\n")
    for name, devices in (("R_Hibrido", ["cuda:0", "cuda:1", "cpu"]), ("R_1GPU", "cuda:0")):
        hybrid = folder / HYBRID / name
        make_runs(hybrid, count=1, seconds=45.0, devices=devices)
        for table in ("Entrenamientos.csv", "Validaciones.csv"):
            write(hybrid / table, ",".join((hybrid / table).read_text().split()) + "\n")
    write(
        folder / HYBRID / "resultados_previos.csv",
        f'{FIRST_TABLE_HEADER}\nTensorflow, 95\\%, 9.4"\nTensorflow GPU, 96\\%, 6.13"\nPytorch, 90\\%, 14"\n'
        'Pytorch GPU, 90\\%, 19.5"',
    )
    for size, batches in (("295x222", (72, 96, 128)), ("148x112", (72, 96, 128, 160, 192, 256))):
        rows = [",".join(f"{epoch / 2 + column:.2f}%" for column in range(len(batches))) for epoch in range(EPOCHS)]
        header = ",".join(map(str, batches))
        write(folder / STUDY / "Precisiones" / f"{size}.csv", "\n".join([header, *rows]) + "\n", line_end="\r\n")
        pairs = ",".join(f"{number},{1000.5 * number}" for number in range(1, len(batches) + 1))
        write(folder / STUDY / "Tiempos" / f"{size}.csv", pairs + "\n\n", line_end="\r\n")
    write(folder / STUDY / "Tiempos/Tiempos_conjuntos.csv", "12.5, 23.25\n15.5, 2.75", line_end="\r\n")
    write(folder / STUDY / "Tiempos/tiempos_overview.csv", "1,3001.5,2,3575.04,3,1825.02")
    return folder


def make_runs(folder, *, count, seconds, devices, batch_size=128):
    """Write the tables of `count` timed runs."""
    each = [seconds + run / 2 for run in range(count)]
    rows = [",".join(f"{one + 2 * (epoch == 0):.6f}" for one in each) for epoch in range(EPOCHS)]
    write(folder / "Entrenamientos.csv", "\n".join(rows) + "\n")
    write(folder / "Validaciones.csv", f"{','.join([f'{VALIDATION_SECONDS:.6f}'] * count)}\n" * EPOCHS)
    accuracies = [",".join([f"{(epoch + 1) / 200:.6f}"] * count) for epoch in range(EPOCHS)]
    write(folder / "Precisiones.csv", "\n".join(accuracies) + "\n")
    write(folder / "General.csv", general_text(each))
    write_parameters(folder, devices=devices, batch_size=batch_size)


def write_parameters(folder, *, devices, batch_size=128):
    parameters = {
        "Tam. entrenamiento": 7650,
        "Tam. validacion": 180,
        "Tam. test": 1170,
        "Tam. batch": batch_size,
        "Dispositivo" if isinstance(devices, str) else "Dispositivos": devices,
        "Tam. muestras": [148, 197],
    }
    write(folder / "Parametros.json", json.dumps(parameters) + "\n")


def general_text(seconds):
    """Return General.csv of runs whose epochs but the first train so long; 34.5 s, 0.75 and 0.04 on the test."""
    rows = [
        f"{run},{EPOCHS * (one + VALIDATION_SECONDS) + 2 + 0.0005},34.5,0.75,0.04" for run, one in enumerate(seconds)
    ]
    return "\n".join([GENERAL_HEADER, *rows]) + "\n"


def trace_text(*, separator, second_gpu):
    """Return an energiaN.dat."""
    header = " ".join(name.replace("_", separator) for name in TRACE_HEADER)
    rows = [f"20.0 1.0 10.0 2.0 {watts:.6f} {second_gpu:.6f}" for watts in FIRST_GPU_WATTS]
    return "\n".join([header, *rows]) + "\n"


def sums_text(*, seconds):
    """Return a consumos.dat."""
    return ",".join(f'"{name}"' for name in SUMS_HEADER) + f"\n30,1.5,15,3,165,25.5,{seconds}\n"


def write(path, text, *, line_end="\n"):
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline=line_end)


# The numbers of the thesis

NUMBERS = Path(__file__).parents[1] / "analysis" / "thesis" / "numbers.csv"


def read_numbers():
    """Return (what it describes, quantity) -> row of `numbers.csv`, what the raw files of the thesis give."""
    with NUMBERS.open(newline="") as file:
        rows = [row | {"n": int(row["n"]), "value": float(row["value"])} for row in csv.DictReader(file)]
    return {(row["of"], row["what"]): row for row in rows}


def make_thesis_of_numbers(folder):
    """Write files like the raw ones whose means, minima, maxima and sums are those of `numbers.csv`; return the folder.

    All epochs of a run are alike, and so are the samples of a trace, and the runs of an environment but for their
    accuracies. What no number follows from, such as the second processor's part, is made up.
    """
    make_thesis(folder)  # for what is overwritten, and table 3.1, whose numbers are the thesis's
    of = {key: row["value"] for key, row in read_numbers().items()}
    accuracies = {key[0]: key[0].partition(" (")[2].split()[0] for key in of if key[1] == "mean, %"}
    for name, label in ENVIRONMENTS.items():
        (described,) = [one for one in accuracies if one.partition(" (")[0] == label]
        count, devices = int(accuracies[described]), _devices(name)
        mean, *ends = (of[described, f"{which}, %"] / 100 for which in ("mean", "min", "max"))
        reached = [*ends, *[(count * mean - sum(ends)) / (count - 2)] * (count - 2)] if count > 2 else ends
        seconds = [of[label, f"{phase}, s"] for phase in ("training", "validation", "test")]
        again = []
        if name == "cpu":  # its table has the second run, too
            both = of["1 GPU", "speedup over the mean of both CPU runs, as in its text"] * of["1 GPU", "total, s"]
            again = [((2 * both - of[label, "total, s"] - seconds[1] - seconds[2], *seconds[1:]), reached.pop())]
            _write_timed(folder / TIMED_FOLDERS["cpu2"], again, devices=devices)
        runs = [(seconds, one) for one in reached]
        _write_timed(folder / TIMED_FOLDERS[name], runs, devices=devices, batch_size=64 if "64" in name else 128)
        _write_general(folder / TIMED_FOLDERS[name], [*runs, *again])
    for name, label in (("hybrid", "2 GPUs and CPU"), ("hybrid-gpu1", "1 GPU")):
        seconds = [EPOCHS * of[label, f"{phase} per epoch, s"] for phase in ("training", "validation")]
        run = [([*seconds, 30.0], of[label, "test accuracy, %"] / 100)]
        _write_timed(folder / TIMED_FOLDERS[name], run, devices=_devices(name), in_a_row=True)
    for name, metered in METERED_FOLDERS.items():
        _write_energies(folder / metered, name, of)
    for size, batches in (("295x222", (72, 96, 128)), ("148x112", (72, 96, 128, 160, 192, 256))):
        last = ",".join(f"{of[f'{size}, batch {batch}', 'last validation accuracy, %']}%" for batch in batches)
        write(folder / STUDY / "Precisiones" / f"{size}.csv", ",".join(map(str, batches)) + f"\n{last}" * EPOCHS)
        times = [of[f"{size}, batch {batch}", "training + validation, s"] for batch in batches]
        pairs = ",".join(f"{number},{time!r}" for number, time in enumerate(times, start=1))
        write(folder / STUDY / "Tiempos" / f"{size}.csv", pairs)
    shares = [[of[f"{share} % for validation", f"{phase} per epoch, s"] for phase in ("training", "validation")]
              for share in (10, 1)]  # fmt: skip
    write(folder / STUDY / "Tiempos/Tiempos_conjuntos.csv", "\n".join(f"{one!r}, {other!r}" for one, other in shares))
    totals = [of["295x222, batch 128", "training + validation, s"], *(EPOCHS * sum(share) for share in shares)]
    pairs = ",".join(f"{number},{total!r}" for number, total in enumerate(totals, start=1))
    write(folder / STUDY / "Tiempos/tiempos_overview.csv", pairs)
    return folder


def _devices(name):
    """Return the devices of an environment as its parameters name them."""
    gpus = ["cuda:0", "cuda:1"]
    return {"cpu": "cpu", "gpu1": "cuda:0", "hybrid-gpu1": "cuda:0", "gpu1-wrapped": gpus[:1],
            "hybrid": [*gpus, "cpu"]}.get(name, gpus)  # fmt: skip


def _write_timed(folder, runs, *, devices, batch_size=128, in_a_row=False):
    """Write the tables of runs: the seconds of their phases, and their accuracy."""
    for phase, file in enumerate(("Entrenamientos.csv", "Validaciones.csv")):
        rows = [",".join(repr(seconds[phase] / EPOCHS) for seconds, _ in runs)] * EPOCHS
        write(folder / file, (",".join(rows) if in_a_row else "\n".join(rows)) + "\n")
    write(folder / "Precisiones.csv", f"{','.join(repr(accuracy) for _, accuracy in runs)}\n" * EPOCHS)
    _write_general(folder, runs)
    write_parameters(folder, devices=devices, batch_size=batch_size)


def _write_general(folder, runs):
    rows = [f"{number},{seconds[0] + seconds[1]!r},{seconds[2]!r},{accuracy!r},0.04"
            for number, (seconds, accuracy) in enumerate(runs)]  # fmt: skip
    write(folder / "General.csv", "\n".join([GENERAL_HEADER, *rows]) + "\n")


def _write_energies(folder, name, of):
    """Write three traces of constant power and the published sums; of the CPU sums alone."""
    label, printed = ENVIRONMENTS[name], read_published().results[f"thesis-{name}"]
    joules = {device: of[label, f"{device}, J"] for device in ("cpu", "gpu0", "gpu1")}
    if name == "cpu":
        write(folder / "consumos.dat", _sums_of(joules, of[label, "metered runs, s"]))
        return
    write(folder / "consumos_medios.dat", _sums_of(printed.joules, printed.energy_seconds))
    intervals = round(6 * of[label, "metered runs, s"])  # of half a second, in three traces
    for number in range(3):
        samples = (intervals + number) // 3 + 1
        cpu, *gpus = (2 * value / samples for value in joules.values())
        rest = f"{cpu / 2!r} 1.0 {cpu / 2!r} 1.0"
        rows = [f"{rest} {watts} 16.0" for watts in (16.0, 21.0)] + [f"{rest} {gpus[0]!r} {gpus[1]!r}"] * samples
        write(folder / f"energia{number}.dat", "\n".join([" ".join(TRACE_HEADER), *rows]) + "\n")


def _sums_of(joules, seconds):
    header, half = ",".join(f'"{name}"' for name in SUMS_HEADER), joules["cpu"] / 2
    return f"{header}\n{half!r},1.0,{half!r},1.0,{joules['gpu0']!r},{joules['gpu1']!r},{seconds!r}\n"
