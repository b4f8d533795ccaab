"""Raw files like those of the thesis, with the numbers of `small.toml` or `full.toml`.

Of each folder the runs differ by half a second an epoch around their mean, and the first epoch trains 2 seconds more
than the others. Validation accuracy rises by 0.005 per epoch to 0.5. What no number follows from, such as the power of
the RAM, is made up.
"""

import csv
import json
import os
import tomllib
from pathlib import Path

from analysis.runs.published import read_published
from analysis.thesis.runs import METERED_FOLDERS, TIMED_FOLDERS
from analysis.thesis.tables import EPOCHS, FIRST_TABLE_HEADER, GENERAL_HEADER
from analysis.thesis.traces import SUMS_HEADER, TRACE_HEADER

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "thesis"
ORIGINALS = Path(os.environ.get("THESIS_DATA", BESIDE))  # the raw files, which are no part of the project
DATA = Path(__file__).resolve().parents[1] / "analysis" / "thesis"
RESULTS = Path("Resultados_experimentos")
STUDY = Path("Datos_Capitulos/Datos_Capitulo_3/Experimentos_parametros")
HYBRID = Path("Datos_Capitulos/Datos_Capitulo_3/Modelo hibrido")
FIRST_ROWS = '\nTensorflow, 95\\%, 9.4"\nTensorflow GPU, 96\\%, 6.13"\nPytorch, 90\\%, 14"\nPytorch GPU, 90\\%, 19.5"'
STARTING_WATTS = (47.0, 16.0, 16.0, 90.0)  # of the first GPU, which counts from the sample after the rise on


def read_numbers():
    """Return (what it describes, quantity) -> row of `numbers.csv`, what the raw files of the thesis give."""
    with (DATA / "numbers.csv").open(newline="") as file:
        rows = [row | {"n": int(row["n"]), "value": float(row["value"])} for row in csv.DictReader(file)]
    return {(row["of"], row["what"]): row for row in rows}


def make_thesis(folder, *, numbers="small"):
    """Write all files; return the folder."""
    of = tomllib.loads((DATA / f"{numbers}.toml").read_text())
    general = {name: _write_timed(folder / TIMED_FOLDERS[name], name, **runs) for name, runs in of["timed"].items()}
    again = ",".join(["1", *general["cpu2"].splitlines()[1].split(",")[1:]])
    write(folder / TIMED_FOLDERS["cpu"] / "General.csv", f"{general['cpu']}{again}\n")  # has the second run, too
    for name, runs in of["metered"].items():
        _write_metered(folder / METERED_FOLDERS[name], name, **runs)
    for size, study in of["study"].items():
        shares = [(epoch + 1) / EPOCHS for epoch in range(EPOCHS)]
        rows = [",".join(f"{share * accuracy!r}%" for accuracy in study["accuracies"]) for share in shares]
        header = ",".join(map(str, study["batches"]))
        write(folder / STUDY / "Precisiones" / f"{size}.csv", "\n".join([header, *rows]) + "\n", line_end="\r\n")
        write(folder / STUDY / "Tiempos" / f"{size}.csv", _numbered(study["seconds"]) + "\n\n", line_end="\r\n")
    shares = "\n".join(f"{training!r}, {validation!r}" for training, validation in of["shares"]["seconds"])
    write(folder / STUDY / "Tiempos/Tiempos_conjuntos.csv", shares, line_end="\r\n")
    write(folder / STUDY / "Tiempos/tiempos_overview.csv", _numbered(of["shares"]["totals"]))
    write(folder / HYBRID / "resultados_previos.csv", FIRST_TABLE_HEADER + FIRST_ROWS)
    return folder


def write(path, text, *, line_end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline=line_end)


def _numbered(values):
    return ",".join(f"{number},{value!r}" for number, value in enumerate(values, start=1))


def _write_timed(folder, name, *, devices, batch_size, seconds, accuracies):
    """Write the tables of runs; return that of total times."""
    mean, validation, test = seconds
    runs = len(accuracies)
    training = [mean + EPOCHS / 2 * (run - (runs - 1) / 2) for run in range(runs)]
    epochs = [[repr((one - 2) / EPOCHS + 2 * (epoch == 0)) for one in training] for epoch in range(EPOCHS)]
    between = "," if name.startswith("hybrid") else "\n"
    write(folder / "Entrenamientos.csv", between.join(map(",".join, epochs)) + "\n")
    write(folder / "Validaciones.csv", between.join([",".join([repr(validation / EPOCHS)] * runs)] * EPOCHS) + "\n")
    rows = "\n".join(",".join([repr((epoch + 1) / 200)] * runs) for epoch in range(EPOCHS)) + "\n"
    if name == "cpu":
        rows = rows.replace(".", ",")
    elif name == "gpu2-batch64":
        rows = rows.replace(",", ";").replace(".", ",").replace("\n", "\r\n")
    write(folder / "Precisiones.csv", rows, line_end="")
    totals = enumerate(zip(training, accuracies, strict=True))
    lines = [f"{run},{one + validation + 0.0005!r},{test!r},{accuracy!r},0.04" for run, (one, accuracy) in totals]
    general = "\n".join([GENERAL_HEADER, *lines]) + "\n"
    write(folder / "General.csv", general)
    parameters = {
        "Tam. entrenamiento": 7650,
        "Tam. validacion": 180,
        "Tam. test": 1170,
        "Tam. batch": batch_size,
        "Dispositivo" if isinstance(devices, str) else "Dispositivos": devices,
        "Tam. muestras": [148, 197],
    }
    write(folder / "Parametros.json", json.dumps(parameters) + "\n")
    return general


def _write_metered(folder, name, *, seconds, joules):
    """Write three traces of constant power and the published sums; of the CPU sums alone."""
    if name == "cpu":
        write(folder / "consumos.dat", _sums_of(joules, seconds), line_end="\r\n")
        return
    published = read_published().results[f"thesis-{name}"]
    write(folder / "consumos_medios.dat", _sums_of(published.joules, published.energy_seconds), line_end="\r\n")
    intervals = round(6 * seconds)  # of half a second, in three traces
    for number in range(3):
        samples = (intervals + number) // 3 + 1
        cpu, *gpus = (2 * value / samples for value in joules.values())
        rest = f"{2 * cpu / 3!r} 1.0 {cpu / 3!r} 2.0"
        rows = [f"{rest} {watts} {gpus[1]!r}" for watts in STARTING_WATTS] + [
            f"{rest} {gpus[0]!r} {gpus[1]!r}"
        ] * samples
        header = " ".join(TRACE_HEADER).replace("_", "-" if number == 1 else "_")
        write(folder / f"energia{number}.dat", "\n".join([header, *rows]) + "\n")


def _sums_of(joules, seconds):
    header, cpu = ",".join(f'"{name}"' for name in SUMS_HEADER), joules["cpu"] / 3
    return f"{header}\n{2 * cpu!r},1.5,{cpu!r},3.0,{joules['gpu0']!r},{joules['gpu1']!r},{seconds!r}\n"
