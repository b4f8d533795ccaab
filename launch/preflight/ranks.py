"""Start all ranks of a preflight as the site starts them, for one sum over all of them."""

import os
import shlex
import tempfile
import time
from pathlib import Path

from pydantic import TypeAdapter

from common.checks.preflight_worker import MARK, ExchangeReport
from common.distributed.console import counted
from common.errors import UserError
from common.utils.paths import ROOT
from launch.preflight.ask import Tell
from launch.preflight.plan import Plan
from launch.starting.processes import clean_line, reason_in, started

LIMIT_SECONDS = 120.0  # a cold file system may take a minute for a framework; what goes on longer hangs
TELL_SECONDS = 5.0
POLL_SECONDS = 0.05
_REPORT = TypeAdapter(ExchangeReport)


def start_ranks(plan: Plan, *, tell: Tell, limit_seconds: float = LIMIT_SECONDS) -> tuple[ExchangeReport | str, float]:
    """Return what the ranks found, or the line that says why they found nothing, and the seconds it took."""
    framework = plan.frameworks[0]
    try:
        words = plan.start.words(np=plan.size, controller=plan.chosen_controller)
    except UserError as error:
        return str(error), 0.0
    worker = os.path.relpath(ROOT / f"{framework}_impl" / "preflight_worker.py")
    command = [*words, "python", worker, "--device", plan.device]
    tell(f"starting {counted(plan.size, 'rank')}: {shlex.join(command)}")
    began = told = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        log = Path(folder) / "log"
        try:
            with started(command, variables=plan.site.variables, log=log) as process:
                while process.poll() is None and time.monotonic() - began < limit_seconds:
                    if time.monotonic() - told > TELL_SECONDS:
                        told = time.monotonic()
                        tell(f"waiting for the ranks for {told - began:.0f} s")
                    time.sleep(POLL_SECONDS)
                code, seconds = process.poll(), time.monotonic() - began
        except UserError as error:
            return str(error), 0.0
        report = read_report(log)
        if code == 0 and report is not None:
            return report, seconds
        end = f"have not ended after {limit_seconds:g} s" if code is None else f"ended with code {code}"
        return (
            f"{', '.join(plan.hosts)}: the ranks {end}: {reason_in(log)}. Try it alone: `{shlex.join(command)}`",
            seconds,
        )


def read_report(log: Path) -> ExchangeReport | None:
    """Return what rank 0 has reported; None: nothing."""
    for line in map(clean_line, log.read_text(errors="replace").splitlines()):
        if line and line.startswith(MARK):
            return _REPORT.validate_json(line.removeprefix(MARK))
    return None
