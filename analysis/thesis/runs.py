"""The runs of the thesis: the files that contain them, and the names of their run folders.

cpu-r1, cpu2-r1                         the CPU, and the second run on it
gpu1-r1 to r10, gpu1-wrapped-r1 to r10  1 GPU, without and with the distributed wrapper
gpu2-r1 to r10, gpu2-batch64-r1 to r5   2 GPUs, with batches of 128 and of 64 a GPU
hybrid-r1, hybrid-gpu1-r1               2 GPUs and the CPU, and the run on 1 GPU compared with it
gpu1-energy1 to 3, gpu1-wrapped-..., gpu2-...   metered runs, with power.csv and without times
cpu-energy1                             the same for the CPU: sums only, its power over time is lost
gpu1-energy-published, ...              origin `published`: means of the metered runs, with the seconds used in the
                                        thesis's energy-delay products; those of its CPU are in cpu-energy1
size295x222-batch72, ...                width x height and batch size, one run each; training and validation together
validation10percent, validation1percent 148x112 in batches of 128 by the share of validation samples; the first is
                                        size148x112-batch128 again, with training and validation separate
table31-keras-cpu, ...                  table 3.1
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.runs.stated import stated_model
from analysis.thesis.records import (
    CLASSES,
    METERED,
    WITHIN_TRAINING,
    data_record,
    energy_record,
    epoch_records,
    power_trace,
    recorded_data,
    recorded_world,
    run_record,
    totals_record,
    world_of,
)
from analysis.thesis.tables import (
    EPOCHS,
    read_accuracies,
    read_epochs,
    read_first_table,
    read_general,
    read_numbered_seconds,
    read_parameters,
    read_phase_seconds,
)
from analysis.thesis.traces import USED_DEVICES, read_sums, read_trace
from common.measurement.metrics import images_per_second
from common.measurement.power_trace import PowerTrace
from common.run_folder.records import EpochRecord, NotRecorded, RunRecord

RESULTS = Path("Resultados_experimentos")
CPU, ONE_GPU, WRAPPED, TWO_GPUS = (RESULTS / folder for folder in USED_DEVICES)
CPU_AGAIN = RESULTS / "Resultados_CPU_2"
CHAPTER_3 = Path("Datos_Capitulos/Datos_Capitulo_3")
HYBRID = CHAPTER_3 / "Modelo hibrido"
STUDY = CHAPTER_3 / "Experimentos_parametros"

TRACES = 3  # of each environment with GPUs
STUDY_BATCH_SIZES = {(295, 222): (72, 96, 128), (148, 112): (72, 96, 128, 160, 192, 256)}  # of width x height
STUDY_SAMPLES = (6300, 900, 1800)  # 70, 10 and 20 % (section 3.4) of 9,000
STUDY_WORLD = NotRecorded("the thesis does not say on which devices its study of hyper-parameters ran")
VALIDATION_SHARES = (10, 1)  # percent
FIRST_TABLE = {
    "Tensorflow": ("keras", "cpu"),
    "Tensorflow GPU": ("keras", "gpu"),
    "Pytorch": ("torch", "cpu"),
    "Pytorch GPU": ("torch", "gpu"),
}
FIRST_TABLE_EPOCHS = 8  # pseudocodes 3.1 and 3.2


# Prefix of the run folders, before "-r1" -> folder of timed runs.
TIMED_FOLDERS = {
    "cpu": CPU,
    "gpu1": ONE_GPU,
    "gpu1-wrapped": WRAPPED,
    "gpu2": TWO_GPUS,
    "gpu2-batch64": RESULTS / "Resultados_distribuido_2GPU_64",
    "cpu2": CPU_AGAIN,
    "hybrid": HYBRID / "R_Hibrido",
    "hybrid-gpu1": HYBRID / "R_1GPU",
}
METERED_FOLDERS = {"cpu": CPU, "gpu1": ONE_GPU, "gpu1-wrapped": WRAPPED, "gpu2": TWO_GPUS}


@dataclass(frozen=True, kw_only=True)
class ThesisRun:
    """A run folder before it is written.

    Attributes:
        name: of the folder.
        group: of similar runs, for display.
        trace: goes into power.csv.
        unexplained_seconds: total time in the files minus the sum of the epochs' times.
    """

    name: str
    group: str
    record: RunRecord
    epochs: Sequence[EpochRecord] = ()
    trace: PowerTrace | None = None
    unexplained_seconds: float = 0.0


def read_thesis(thesis: Path) -> list[ThesisRun]:
    """Read all runs of the thesis from the folder of its raw files.

    Raises:
        UserError: a file is missing or not as expected; the message names it.
    """
    return [
        *(run for name in TIMED_FOLDERS for run in _timed_runs(thesis, name)),
        *(run for name, folder in METERED_FOLDERS.items() for run in _metered_runs(name, thesis / folder)),
        *_study_runs(thesis / STUDY),
        *_validation_share_runs(thesis / STUDY / "Tiempos"),
        *_first_table_runs(thesis / HYBRID / "resultados_previos.csv"),
    ]


def _timed_runs(thesis: Path, name: str) -> Iterator[ThesisRun]:
    folder = thesis / TIMED_FOLDERS[name]
    parameters, general = read_parameters(folder / "Parametros.json"), read_general(folder / "General.csv")
    if name == "cpu":  # its table repeats the second run
        general = general[: -len(read_general(thesis / CPU_AGAIN / "General.csv"))]
    runs = len(general)
    phases = [folder / f"{phase}.csv" for phase in ("Entrenamientos", "Validaciones")]
    # (phases, epochs, runs)
    seconds = np.stack([read_epochs(file, runs=runs, in_a_row=name.startswith("hybrid")) for file in phases])
    accuracies = read_epochs(folder / "Precisiones.csv", runs=runs, accuracies=True)
    world, data = recorded_world(parameters), recorded_data(parameters)
    for column, row in enumerate(general):
        training, validation = seconds[..., column].sum(axis=1).tolist()
        first = float(seconds[0, 0, column])
        totals = totals_record(
            steps=EPOCHS * data.steps_per_epoch,
            training_seconds=training,
            validation_seconds=validation,
            test_seconds=row.test_seconds,
            images_per_second=images_per_second(EPOCHS * data.training_samples, training),
            test_loss=row.test_loss,
            test_accuracy=row.test_accuracy,
            first_epoch_seconds=first,
            steady_images_per_second=images_per_second((EPOCHS - 1) * data.training_samples, training - first),
        )
        yield ThesisRun(
            name=f"{name}-r{column + 1}",
            group=name,
            record=run_record(world=world, data=data, totals=totals),
            epochs=epoch_records(data, accuracies[:, column], seconds[..., column]),
            unexplained_seconds=row.epoch_seconds - training - validation,
        )


def _metered_runs(name: str, folder: Path) -> Iterator[ThesisRun]:
    parameters, used = read_parameters(folder / "Parametros.json"), USED_DEVICES[folder.name]
    world, data = recorded_world(parameters), recorded_data(parameters)
    group = f"{name}, metered"
    if name == "cpu":
        energy = energy_record(read_sums(folder / "consumos.dat"), used=used)
        record = run_record(world=world, data=data, totals=METERED, energy=energy)
        yield ThesisRun(name=f"{name}-energy1", group=f"{group}, sums only", record=record)
        return
    for number in range(TRACES):
        trace = read_trace(folder / f"energia{number}.dat")
        energy = energy_record(trace.energy(), used=used, trace=trace)
        record = run_record(world=world, data=data, totals=METERED, energy=energy)
        yield ThesisRun(name=f"{name}-energy{number + 1}", group=group, record=record, trace=power_trace(trace))
    published = energy_record(read_sums(folder / "consumos_medios.dat"), used=used)
    record = run_record(world=world, data=data, totals=METERED, energy=published, origin="published")
    yield ThesisRun(name=f"{name}-energy-published", group=f"{group}, published means", record=record)


def _study_runs(folder: Path) -> Iterator[ThesisRun]:
    for (width, height), batch_sizes in STUDY_BATCH_SIZES.items():
        size = f"{width}x{height}"
        accuracies = read_accuracies(folder / "Precisiones" / f"{size}.csv", batch_sizes=batch_sizes)
        times = read_numbered_seconds(folder / "Tiempos" / f"{size}.csv", runs=len(batch_sizes))
        for column, (batch_size, seconds) in enumerate(zip(batch_sizes, times, strict=True)):
            data = data_record(samples=STUDY_SAMPLES, image_shape=(height, width, 1), global_batch=batch_size)
            totals = totals_record(
                steps=EPOCHS * data.steps_per_epoch, training_seconds=seconds, validation_seconds=WITHIN_TRAINING
            )
            yield ThesisRun(
                name=f"size{size}-batch{batch_size}",
                group="resolution x batch",
                record=run_record(world=STUDY_WORLD, data=data, totals=totals),
                epochs=epoch_records(data, accuracies[:, column]),
            )


def _validation_share_runs(folder: Path) -> Iterator[ThesisRun]:
    phases = read_phase_seconds(folder / "Tiempos_conjuntos.csv", runs=len(VALIDATION_SHARES))
    # The first is for 295x222 pixels, which also has its own table.
    _, *times = read_numbered_seconds(folder / "tiempos_overview.csv", runs=1 + len(VALIDATION_SHARES))
    for share, (training, validation), seconds in zip(VALIDATION_SHARES, phases, times, strict=True):
        # The files contain means over the epochs.
        totals = totals_record(training_seconds=EPOCHS * training, validation_seconds=EPOCHS * validation)
        record = run_record(
            world=STUDY_WORLD,
            data=NotRecorded(
                f"148x112, batch 128, {share} % of 9,000 samples for validation; the thesis does not split the rest"
            ),
            model=stated_model("resnet34", (112, 148, 1), CLASSES),
            totals=totals,
        )
        yield ThesisRun(
            name=f"validation{share}percent",
            group="share of validation",
            record=record,
            unexplained_seconds=seconds - EPOCHS * (training + validation),
        )


def _first_table_runs(path: Path) -> Iterator[ThesisRun]:
    for row in read_first_table(path, names=list(FIRST_TABLE)):
        framework, device = FIRST_TABLE[row.name]
        record = run_record(
            framework=framework,
            world=world_of(["cuda:0" if device == "gpu" else device], controller="none"),
            data=NotRecorded("MNIST in batches of 50; the thesis does not say how the samples were split"),
            model=stated_model("mlp", (28, 28, 1), 10),
            totals=totals_record(
                epochs=FIRST_TABLE_EPOCHS,
                training_seconds=row.seconds,
                validation_seconds=WITHIN_TRAINING,
                test_seconds=WITHIN_TRAINING,
                test_accuracy=row.accuracy,
            ),
        )
        yield ThesisRun(name=f"table31-{framework}-{device}", group="table 3.1", record=record)
