"""Readers of the tables in the thesis's raw files.

    Parametros.json                            samples, batch size and devices
    General.csv                                a row per run: seconds, accuracy and loss
    Entrenamientos, Validaciones.csv           a row per epoch, a column per run: seconds of training, of validation
    Precisiones.csv                            the same: validation accuracy
    Experimentos_parametros/Precisiones/*.csv  a row per epoch, a column per batch size: validation accuracy in percent
    Experimentos_parametros/Tiempos/*.csv      "1,SECONDS,2,SECONDS": a pair per run (Tiempos_conjuntos.csv: a row)
    resultados_previos.csv                     table 3.1: framework and device, accuracy in percent, seconds

Some files have decimal commas and semicolons between columns. All numbers have decimals, so that a table without a full
stop has decimal commas. The hybrid's seconds are in a row. The functions return seconds and fractions, and raise a
UserError for a file that cannot be read or has another format.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from common.errors import UserError, first_problem
from common.utils import whole_files

EPOCHS = 100  # of every run except those of table 3.1
GENERAL_HEADER = ",Tiempo Entrenamiento (s),Tiempo Evaluacion (s),Precision (%),Error (%)"
FIRST_TABLE_HEADER = "Framework, Precision final, Tiempo total"
Device = Literal["cpu", "cuda:0", "cuda:1"]


class Parameters(BaseModel):
    """The contents of `Parametros.json`; with the distributed wrapper it has a list of devices.

    Attributes:
        batch_size: per GPU, or of the CPU if it computes alone.
        image_shape: height and width in pixels.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    training_samples: PositiveInt = Field(alias="Tam. entrenamiento")
    validation_samples: PositiveInt = Field(alias="Tam. validacion")
    test_samples: PositiveInt = Field(alias="Tam. test")
    batch_size: PositiveInt = Field(alias="Tam. batch")
    image_shape: tuple[PositiveInt, PositiveInt] = Field(alias="Tam. muestras")
    device: Device | Annotated[list[Device], Field(min_length=1)] = Field(
        validation_alias=AliasChoices("Dispositivo", "Dispositivos")
    )

    @property
    def wrapped(self) -> bool:
        """Whether the distributed wrapper was used, even on one device."""
        return isinstance(self.device, list)

    @property
    def devices(self) -> list[str]:
        """The device of each rank."""
        return [*self.device] if isinstance(self.device, list) else [self.device]


class GeneralRow(NamedTuple):
    """A row of `General.csv`: `epoch_seconds` of training and validation in all epochs; fractions, not percent."""

    number: float
    epoch_seconds: float
    test_seconds: float
    test_accuracy: float
    test_loss: float


class FirstTableRow(NamedTuple):
    """A row of table 3.1."""

    name: str
    accuracy: float
    seconds: float


def read_parameters(path: Path) -> Parameters:
    """Read a Parametros.json."""
    try:
        return Parameters.model_validate_json(read_text(path))
    except ValidationError as error:
        raise invalid(path, first_problem(error)) from None


def read_general(path: Path) -> list[GeneralRow]:
    """Read a General.csv."""
    rows = read_table(path, columns=5, header=GENERAL_HEADER)
    _refuse_above_one(path, rows[:, 3])
    return [GeneralRow(*row) for row in rows.tolist()]


def read_epochs(path: Path, *, runs: int, in_a_row: bool = False, accuracies: bool = False) -> NDArray[np.float64]:
    """Read an Entrenamientos.csv, Validaciones.csv or Precisiones.csv.

    Args:
        path: the file.
        runs: number of columns.
        in_a_row: the epochs of a run are in a row.
        accuracies: fractions, not seconds.

    Returns:
        (EPOCHS, runs) float64.
    """
    columns, rows = (EPOCHS, runs) if in_a_row else (runs, EPOCHS)
    table = read_table(path, columns=columns, rows=rows)
    if accuracies:
        _refuse_above_one(path, table)
    elif table.min() == 0:
        raise invalid(path, "an epoch of 0 s")
    return table.T if in_a_row else table


def read_accuracies(path: Path, *, batch_sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return the validation accuracies of one resolution in the study: (EPOCHS, batch sizes) float64."""
    header = ",".join(map(str, batch_sizes))
    table = read_table(path, columns=len(batch_sizes), rows=EPOCHS, header=header, unit="%") / 100
    _refuse_above_one(path, table)
    return table


def read_numbered_seconds(path: Path, *, runs: int) -> list[float]:
    """Read the total times of runs in the study: "1,SECONDS,2,SECONDS"."""
    pairs = read_table(path, columns=2 * runs, rows=1).reshape(-1, 2)
    if pairs[:, 0].tolist() != list(range(1, runs + 1)):
        raise invalid(path, f"runs numbered {pairs[:, 0].tolist()}")
    return pairs[:, 1].tolist()


def read_phase_seconds(path: Path, *, runs: int) -> NDArray[np.float64]:
    """Read Tiempos_conjuntos.csv: seconds of training and of validation, means over the epochs: (runs, 2) float64."""
    return read_table(path, columns=2, rows=runs)


def read_first_table(path: Path, *, names: Sequence[str]) -> list[FirstTableRow]:
    r"""Read resultados_previos.csv, whose rows look like `Pytorch GPU, 90\%, 19.5"`."""
    header, *lines = read_text(path).splitlines()
    cells = [re.fullmatch(r'(.+), ([\d.]+)\\%, ([\d.]+)"', line) for line in lines]
    rows = [FirstTableRow(found[1], float(found[2]) / 100, float(found[3])) for found in cells if found]
    if header != FIRST_TABLE_HEADER or [row.name for row in rows] != list(names):
        raise invalid(path, f"the header {header} and rows {'; '.join(lines)}")
    _refuse_above_one(path, np.array([row.accuracy for row in rows]))
    return rows


def read_text(path: Path) -> str:
    """Return the text of a file, without empty lines at the end."""
    try:
        text = whole_files.read_text(path).rstrip()
    except OSError as error:
        raise UserError(
            f"cannot read a file of the thesis: {error.strerror}. Received: {path}. Name an original file"
        ) from None
    except UnicodeDecodeError as error:
        raise invalid(path, str(error)) from None
    if not text:
        raise invalid(path, "an empty file")
    return text


def read_table(
    path: Path,
    *,
    columns: int,
    rows: int | None = None,
    header: str | None = None,
    separator: str = ",",
    unit: str = "",
) -> NDArray[np.float64]:
    """Read a table of numbers, all finite and none negative: (rows, columns) float64.

    Args:
        path: the file.
        columns, rows: numbers of them; None: at least one row.
        header: the first line; None: there is none.
        separator: of columns in a table with decimal points.
        unit: of each number.
    """
    text = read_text(path)
    if header is not None:
        first, _, text = text.partition("\n")
        if first != header:
            raise invalid(path, f"the header {first}")
    if unit and text.count(unit) != columns * len(text.splitlines()):
        raise invalid(path, f"numbers without {unit}")
    text = text.replace(unit, "") if unit else text
    if "." not in text:
        text, separator = text.replace(",", "."), ";"
    if not text:
        raise invalid(path, "no rows")
    try:
        table = np.loadtxt(text.splitlines(), delimiter=separator, ndmin=2)
    except ValueError as error:
        raise invalid(path, str(error)) from None
    expected = (len(table) if rows is None else rows, columns)
    if table.shape != expected:
        raise invalid(path, f"{len(table)} rows of {table.shape[1]} numbers, not {expected[0]} of {columns}")
    if not np.isfinite(table).all() or table.min() < 0:
        raise invalid(path, "a number that is not finite or negative")
    return table


def invalid(path: Path, received: str) -> UserError:
    """Return the error for a file with another format."""
    return UserError(f"{path} is not a file of the thesis. Received: {received}. Name an original file")


def _refuse_above_one(path: Path, accuracies: NDArray[np.float64]) -> None:
    if accuracies.max() > 1:
        raise invalid(path, f"an accuracy of {100 * accuracies.max():g} %")
