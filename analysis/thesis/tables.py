"""Readers of the tables in the thesis's raw files.

    Parametros.json                            samples, batch size and devices
    General.csv                                a row per run: seconds, accuracy and loss
    Entrenamientos, Validaciones.csv           a row per epoch, a column per run: seconds of training, of validation
    Precisiones.csv                            the same: validation accuracy
    Experimentos_parametros/Precisiones/*.csv  a row per epoch, a column per batch size: validation accuracy in percent
    Experimentos_parametros/Tiempos/*.csv      "1,SECONDS,2,SECONDS": a pair per run (Tiempos_conjuntos.csv: a row)
    resultados_previos.csv                     table 3.1: framework and device, accuracy in percent, seconds

Some files have decimal commas and semicolons between columns. All numbers have decimals, so that a table without a full
stop has decimal commas. The hybrid's seconds are in a row. The functions return seconds and fractions.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError

EPOCHS = 100  # of every run except those of table 3.1
GENERAL_HEADER = ",Tiempo Entrenamiento (s),Tiempo Evaluacion (s),Precision (%),Error (%)"
FIRST_TABLE_HEADER = "Framework, Precision final, Tiempo total"
_SIZES = ("Tam. entrenamiento", "Tam. validacion", "Tam. test", "Tam. batch")
# One device, or the list of devices of the distributed wrapper.
_PARAMETERS = [{*_SIZES, "Tam. muestras", device} for device in ("Dispositivo", "Dispositivos")]
_DEVICES = {"cpu", "cuda:0", "cuda:1"}


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The contents of `Parametros.json`.

    Attributes:
        batch_size: per GPU, or of the CPU if it computes alone.
        devices: of each rank.
        wrapped: the distributed wrapper was used, even on one device.
        image_shape: height and width in pixels.
    """

    training_samples: int
    validation_samples: int
    test_samples: int
    batch_size: int
    devices: tuple[str, ...]
    wrapped: bool
    image_shape: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class GeneralRow:
    """A row of `General.csv`.

    Attributes:
        epoch_seconds: training and validation, all epochs.
        test_accuracy, test_loss: fractions, although the headings say percent.
    """

    epoch_seconds: float
    test_seconds: float
    test_accuracy: float
    test_loss: float


@dataclass(frozen=True, kw_only=True)
class FirstTableRow:
    """A row of table 3.1."""

    name: str
    accuracy: float
    seconds: float


def read_parameters(path: Path) -> Parameters:
    """Read a Parametros.json.

    Raises:
        UserError: it cannot be read, or has another format.
    """
    try:
        values = json.loads("\n".join(_lines(path)))
        if not isinstance(values, dict) or values.keys() not in _PARAMETERS:
            raise ValueError(f"other parameters: {values}")
        wrapped = "Dispositivos" in values
        devices = values["Dispositivos"] if wrapped else [values["Dispositivo"]]
        if not devices or not set(devices) <= _DEVICES or len(set(devices)) != len(devices):
            raise ValueError(f"devices {devices}")
        height, width = values["Tam. muestras"]
        sizes = [values[name] for name in _SIZES]
        if not all(type(size) is int and size > 0 for size in (*sizes, height, width)):
            raise ValueError(f"sizes {sizes} and {height} x {width}")
    except (ValueError, TypeError) as error:
        raise _invalid(path, str(error)) from None
    return Parameters(
        training_samples=sizes[0],
        validation_samples=sizes[1],
        test_samples=sizes[2],
        batch_size=sizes[3],
        devices=tuple(devices),
        wrapped=wrapped,
        image_shape=(height, width),
    )


def read_general(path: Path) -> list[GeneralRow]:
    """Read a General.csv.

    Raises:
        UserError: it cannot be read, or has another format.
    """
    header, *lines = _lines(path)
    if header != GENERAL_HEADER or not lines:
        raise _invalid(path, f"the header {header} and {len(lines)} rows")
    rows = _numbers(path, [line.split(",") for line in lines], columns=5)
    _refuse_above_one(path, rows[:, 3])
    return [
        GeneralRow(epoch_seconds=epochs, test_seconds=test, test_accuracy=accuracy, test_loss=loss)
        for _, epochs, test, accuracy, loss in rows.tolist()
    ]


def read_epochs(path: Path, *, runs: int, in_a_row: bool = False, accuracies: bool = False) -> NDArray[np.float64]:
    """Read an Entrenamientos.csv, Validaciones.csv or Precisiones.csv.

    Args:
        path: the file.
        runs: number of columns.
        in_a_row: the epochs of a run are in a row.
        accuracies: fractions, not seconds.

    Returns:
        (EPOCHS, runs) float64.

    Raises:
        UserError: it cannot be read, has another format, or epochs or runs are missing.
    """
    lines = _lines(path)
    decimal_commas = "." not in "".join(lines)
    rows = [line.replace(",", ".").split(";") if decimal_commas else line.split(",") for line in lines]
    table = _numbers(path, rows, columns=EPOCHS if in_a_row else runs)
    if in_a_row:
        table = table.T
    if table.shape != (EPOCHS, runs):
        raise _invalid(path, f"{len(table)} epochs of {table.shape[1]} runs, not {EPOCHS} of {runs}")
    if accuracies:
        _refuse_above_one(path, table)
    elif table.min() == 0:
        raise _invalid(path, "an epoch of 0 s")
    return table


def read_accuracies(path: Path, *, batch_sizes: Sequence[int]) -> NDArray[np.float64]:
    """Read the validation accuracies of one resolution in the study.

    Returns:
        (EPOCHS, batch sizes) float64.

    Raises:
        UserError: it cannot be read, has another format, or its header does not contain these batch sizes.
    """
    header, *lines = _lines(path)
    if header != ",".join(map(str, batch_sizes)) or len(lines) != EPOCHS:
        raise _invalid(path, f"the header {header} and {len(lines)} epochs")
    rows = [_without(path, line.split(","), "%") for line in lines]
    table = _numbers(path, rows, columns=len(batch_sizes)) / 100
    _refuse_above_one(path, table)
    return table


def read_numbered_seconds(path: Path, *, runs: int) -> list[float]:
    """Read the total times of runs in the study: "1,SECONDS,2,SECONDS".

    Raises:
        UserError: it cannot be read, has another format, or another number of runs.
    """
    lines = _lines(path)
    pairs = _numbers(path, [line.split(",") for line in lines], columns=2 * runs).reshape(-1, 2)
    if pairs[:, 0].tolist() != list(range(1, runs + 1)):
        raise _invalid(path, f"runs numbered {pairs[:, 0].tolist()}")
    return [float(seconds) for seconds in pairs[:, 1]]


def read_phase_seconds(path: Path, *, runs: int) -> list[tuple[float, float]]:
    """Read Tiempos_conjuntos.csv: seconds of training and of validation, means over the epochs, a row per run.

    Raises:
        UserError: it cannot be read, has another format, or another number of runs.
    """
    rows = _numbers(path, [line.split(",") for line in _lines(path)], columns=2).tolist()
    if len(rows) != runs:
        raise _invalid(path, f"{len(rows)} rows, not {runs}")
    return [(training, validation) for training, validation in rows]


def read_first_table(path: Path, *, names: Sequence[str]) -> list[FirstTableRow]:
    r"""Read resultados_previos.csv, whose rows look like `Pytorch GPU, 90\%, 19.5"`.

    Raises:
        UserError: it cannot be read, has another format, or its rows have other names.
    """
    header, *lines = _lines(path)
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    if header != FIRST_TABLE_HEADER or [row[0] for row in rows] != list(names) or any(len(row) != 3 for row in rows):
        raise _invalid(path, f"the header {header} and rows {'; '.join(lines)}")
    accuracies = _numbers(path, [_without(path, [row[1] for row in rows], r"\%")], columns=len(names))[0] / 100
    seconds = _numbers(path, [_without(path, [row[2] for row in rows], '"')], columns=len(names))[0]
    _refuse_above_one(path, accuracies)
    return [
        FirstTableRow(name=name, accuracy=accuracy, seconds=spent)
        for name, accuracy, spent in zip(names, accuracies.tolist(), seconds.tolist(), strict=True)
    ]


def _invalid(path: Path, received: str) -> UserError:
    return UserError(f"{path} is not a table of the thesis. Received: {received}. Name an original file")


def _lines(path: Path) -> list[str]:
    """Return the lines, at least one, without empty lines at the end."""
    try:
        lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    except OSError as error:
        raise UserError(
            f"cannot read a table of the thesis: {error.strerror}. Received: {path}. Name an original file"
        ) from None
    except UnicodeDecodeError as error:
        raise _invalid(path, str(error)) from None
    if not lines:
        raise _invalid(path, "an empty file")
    return lines


def _without(path: Path, cells: Sequence[str], unit: str) -> list[str]:
    """Return the cells without their unit, in which each must end."""
    for cell in cells:
        if not cell.endswith(unit):
            raise _invalid(path, f"{cell!r}, without {unit}")
    return [cell.removesuffix(unit) for cell in cells]


def _numbers(path: Path, rows: Sequence[Sequence[str]], *, columns: int) -> NDArray[np.float64]:
    """Return (rows, columns) float64, at least one row, all finite and none negative."""
    for number, row in enumerate(rows, start=1):
        if len(row) != columns:
            raise _invalid(path, f"{len(row)} numbers in row {number}, not {columns}")
        for cell in row:
            try:
                value = float(cell)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value >= 0):
                raise _invalid(path, f"{cell.strip()!r} in row {number}")
    if not rows:
        raise _invalid(path, "no rows")
    return np.array([[float(cell) for cell in row] for row in rows])


def _refuse_above_one(path: Path, accuracies: NDArray[np.float64]) -> None:
    if accuracies.max() > 1:
        raise _invalid(path, f"an accuracy of {100 * accuracies.max():g} %")
