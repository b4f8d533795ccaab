"""Run folders and `parity.json` small and neutral enough to be committed: no weights, no host name, no local path."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from common.checks.bench_record import BENCH_FILE, BENCHES
from common.checks.chaos_record import TRIALS_FILE, read_trials
from common.checks.parity_record import PARITY_FILE
from common.errors import UserError, user_errors
from common.measurement.memory_limit import OVER_LIMIT
from common.run_folder.environment import TUNING_VARIABLES
from common.run_folder.records import EPOCHS_FILE, RUN_FILE
from common.run_folder.search_record import SEARCH_FILE
from common.utils.atomic import atomic_folder

HOST = "host"  # replaces every host name
FOLDER = "runs"  # replaces every path
_PATH = re.compile(r"(?<![\w/.])/(?!sys/)\S+")  # /sys is the same on every Linux


def add_data(source: Path, *, data: Path) -> int:
    """Copy the runs of a folder, or of `launch parity`, into `data/<its name>`; return their number.

    A file of `launch bench` becomes `data/bench/bench.json`.

    Runs are copied that finished, or that their memory limit ended; of a campaign of faults (`launch chaos`) those
    whose ranks came and went. Records keep every measurement; hosts and paths are replaced; of environment variables
    those that tune are kept.

    Raises:
        UserError: there are no runs in the folder, or it cannot be copied.
    """
    if source.is_file():
        BENCHES.read(source)
        target = data / "bench"
        with user_errors("copying results"):
            target.mkdir(parents=True, exist_ok=True)
            _write(target / BENCH_FILE, _neutral_record(source))
        return 1
    read_trials(source)  # what is invalid replaces nothing
    is_campaign = (source / TRIALS_FILE).exists()
    found = [file for file in sorted(source.glob(f"*/{RUN_FILE}")) if _is_result(file)]
    records = [file for file in found if not is_campaign or _record(file)["config"]["faults"]["elastic"]]
    if not records and not is_campaign and not (source / PARITY_FILE).exists():
        raise UserError(f"there are no finished runs to add. Received: {source}. Name a folder of run folders")
    target = data / source.resolve().name
    with user_errors("copying results"):
        data.mkdir(parents=True, exist_ok=True)
    with user_errors("copying results"), atomic_folder(target) as copied:
        for file in records:
            folder = copied / file.parent.name.replace(".", "_")  # a wheel leaves out folders with a dot
            folder.mkdir()
            _write(folder / RUN_FILE, _neutral_record(file))
            shutil.copyfile(file.with_name(EPOCHS_FILE), folder / EPOCHS_FILE)
        for name in (SEARCH_FILE, TRIALS_FILE):
            if (source / name).exists():
                shutil.copyfile(source / name, copied / name)
        if (source / PARITY_FILE).exists():
            _write(copied / PARITY_FILE, _neutral_record(source / PARITY_FILE))
        shutil.rmtree(target, ignore_errors=True)
    return len(records)


def _record(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _is_result(file: Path) -> bool:
    """Return whether a run finished, or was ended by its memory limit, which is a result, too."""
    status = _record(file)["status"]
    return status.get("state") == "finished" or OVER_LIMIT in (status.get("message") or "")


def _write(file: Path, record: Any) -> None:
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


def _neutral_record(file: Path) -> Any:
    record = _record(file)
    hosts = {record["environment"]["host"], *record.get("world", {}).get("hosts", [])}
    for one in (record, *record.get("starts", [])):
        variables = one["environment"].get("variables", {})
        one["environment"]["variables"] = {name: variables[name] for name in TUNING_VARIABLES if name in variables}
    return _neutral(record, hosts=hosts)


def _neutral(value: Any, *, hosts: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _neutral(one, hosts=hosts) for name, one in value.items()}
    if isinstance(value, list):
        return [_neutral(one, hosts=hosts) for one in value]
    if isinstance(value, str):
        host, separator, process = value.partition(", process ")  # as ranks that come and go are named
        return HOST + separator + process if host in hosts else _PATH.sub(FOLDER, value)
    return value
