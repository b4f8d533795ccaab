"""`python -m analysis table`: all runs, epochs or parts of steps as one tidy table, for pandas and other programs."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.io.json import build_table_schema

from analysis.export.tidy import tidy_epochs, tidy_parts, tidy_runs
from analysis.output.finding import selected
from analysis.output.options import add_parser
from analysis.output.tables import Cell, Table, render
from analysis.runs.arguments import add_runs_options
from analysis.runs.table import Selection
from common.errors import HOW_TO_GET_EXTRAS, UserError, user_errors
from common.utils.atomic import atomic_file, write_atomically
from common.utils.command_line import check_new_file, path

TABLES: dict[str, Callable[[Selection], pd.DataFrame]] = {
    "runs": tidy_runs,
    "epochs": tidy_epochs,
    "parts": tidy_parts,
}
FORMATS = (".csv", ".parquet", ".json")


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "table", run, "one tidy table for other programs: CSV, Parquet or JSON")
    add_runs_options(parser)
    parser.add_argument("--of", choices=TABLES, default="runs", help="a row per run, epoch or part of a training step")
    parser.add_argument("--output", type=path, required=True, metavar="FILE", help="ends in .csv, .parquet or .json")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: no runs, none of them profiled, or a file that must not or cannot be written.
    """
    output = options.output
    if output.suffix not in FORMATS:
        raise UserError(f"the ending names the format. Received: --output {output}. End it in {', '.join(FORMATS)}")
    check_new_file(output, replaced=options.force)
    if output.suffix == ".parquet":
        _require_pyarrow(output)
    selection = selected(options)
    frame = TABLES[options.of](selection)
    with user_errors("writing the table"):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_table(frame, output)
    print(f"table: {output}: {len(frame):,} rows, {len(frame.columns)} columns")
    print(*(f"flag: {line}\n" for line in selection.left_out), sep="", end="")


def _require_pyarrow(output: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"Parquet files need the pyarrow package ({error}). Received: --output {output}. "
            f"{HOW_TO_GET_EXTRAS}, or name a .csv or .json file"
        ) from None


def write_table(frame: pd.DataFrame, file: Path) -> None:
    """Write a frame in the format that the file's ending names.

    JSON is the Table Schema of the Frictionless Data project, as `pandas.read_json(orient="table")` reads it.
    """
    if file.suffix == ".parquet":
        with atomic_file(file) as temporary:
            frame.to_parquet(temporary, index=False)
        return
    rows: list[list[Cell]] = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    if file.suffix == ".csv":
        write_atomically(file, render(Table("", list(frame.columns), rows, {}), "csv") + "\n")
        return
    data = [dict(zip(frame.columns, row, strict=True)) for row in rows]
    schema = build_table_schema(frame, index=False)
    write_atomically(file, json.dumps({"schema": schema, "data": data}) + "\n")
