"""`python -m launch sites`, `status`, `logs`, `cancel`: inspect sites and jobs."""

import argparse
import os
from datetime import date
from typing import Any

from tabulate import tabulate

from common.distributed.console import readable_seconds
from common.errors import UserError, expanded
from common.run_folder.records import seconds_since
from common.sites.prices import Price, read_day
from common.sites.table import SITES_FILE, Site, Sites, read_sites
from common.utils.command_line import path, word
from launch.jobs.job import JOBS_FOLDER, JobStatus, job_names, read_job
from launch.jobs.schedulers import scheduler
from launch.sites.site_files import LaunchSite, read_launch_site, shipped_sites
from launch.starting.processes import not_installed, run_filtered

EXIT_CODE_FAILED = 1
_OLD, _LATER = "*", "+"  # behind a price


def add_command(commands: Any) -> None:
    """Add the commands to argparse's subcommands."""
    sites = commands.add_parser("sites", help="list sites, or print one: how jobs start there, machines, prices")
    sites.add_argument("site", metavar="SITE", nargs="?", help="a listed name, or a file; default: a table of all")
    sites.add_argument("--table", type=path, default=SITES_FILE, metavar="FILE", help="machines of your own (TOML)")
    sites.add_argument("--on", metavar="DATE", help="prices as of this day, as 2025-10-31 (default: today)")
    sites.set_defaults(run=show_sites)
    status = commands.add_parser("status", help="show the status of jobs")
    status.add_argument("job", metavar="JOB", nargs="*", help="default: all")
    status.set_defaults(run=show_status)
    logs = commands.add_parser("logs", help="print what a job has printed")
    logs.set_defaults(run=show_logs)
    cancel = commands.add_parser("cancel", help="end a job")
    cancel.set_defaults(run=cancel_job)
    for parser in (logs, cancel):
        parser.add_argument("job", metavar="JOB")
    for parser in (status, logs, cancel):
        parser.add_argument(
            "--jobs-folder", type=word, default=JOBS_FOLDER, help="where jobs are kept (default: %(default)s)"
        )


def show_sites(options: argparse.Namespace) -> None:
    """Print one site, or a table of all.

    Raises:
        UserError: unknown site, no table, no day.
    """
    on, machines = read_day(options.on) or date.today(), read_sites(options.table)
    if options.site is not None:
        show_site(read_launch_site(options.site, machines=machines), on=on)
    else:
        list_sites(machines, on=on)


def list_sites(machines: Sites, *, on: date) -> None:
    """Print a line per kind of node of each site, then the machines to which no jobs are submitted."""
    rows, seen = [], set()
    for name in shipped_sites():
        site = read_launch_site(name)
        seen.update(site.nodes)
        rows += [[name, node, site.scheduler, site.launcher, *_machine(node, machines, on=on)] for node in site.nodes]
    rows += [["", node, "", "", *_machine(node, machines, on=on)] for node in machines.sites if node not in seen]
    headings = ["site", "node", "scheduler", "launcher", "cores", "GPUs", "$ per node-hour", "spot"]
    headings += ["region", "retired"]
    print(tabulate(rows, headers=headings, disable_numparse=True))
    marks = {_mark(price, on=on) for node in machines.sites.values() for price in _prices(node, on=on) if price}
    for mark, words in (
        (_LATER, f"first known price, of a day after {on}"),
        (_OLD, f"price older than a year on {on}"),
    ):
        if mark in marks:
            print(f"{mark} {words}; `sites NAME` prints dates and sources")


def _prices(node: Site, *, on: date) -> list[Price | None]:
    """Return the price on demand and on spot; None: not known."""
    return [node.price(on=on, spot=spot) for spot in (False, True)]


def _mark(price: Price, *, on: date) -> str:
    """Return what is put behind a price that is too old, or of a later day."""
    return _LATER if price.is_later(on=on) else _OLD if price.is_old(on=on) else ""


def _machine(name: str, machines: Sites, *, on: date) -> list[object]:
    node = machines[name]
    gpu = machines.gpu_of(node)
    return [
        node.cores,
        f"{node.gpus} x {gpu.name.removeprefix('NVIDIA ')}" if gpu else "",
        *(f"{price.usd_per_hour:.3f}{_mark(price, on=on)}" if price else "" for price in _prices(node, on=on)),
        next((price.region for price in _prices(node, on=on) if price and price.region), ""),
        f"{node.retired}, now {node.successor}" if node.retired else "",
    ]


def show_site(site: LaunchSite, *, on: date) -> None:
    """Print all that is known of a site."""
    print(tabulate(_described(site), tablefmt="plain", disable_numparse=True))
    for node in site.nodes:
        print(f"\n{node}")
        print(tabulate(_described_machine(node, site.machines, on=on), tablefmt="plain", disable_numparse=True))


def _described(site: LaunchSite) -> list[tuple[str, object]]:
    """Return name and value of what is set on the scheduler's side."""
    of_every_scheduler = ("container", "software")
    tables = {"hosts", "slurm", "skypilot", "kubernetes", *of_every_scheduler}
    rows: list[tuple[str, object]] = []
    for name, value in vars(site).items():
        if name in tables:
            if value is not None and name in (site.scheduler, *of_every_scheduler):
                rows += [(f"{name} {option}", held) for option, held in vars(value).items() if _is_set(held)]
        elif name != "known" and _is_set(value):
            rows.append((name, value))
    return [(name, ", ".join(map(str, value)) if isinstance(value, list) else value) for name, value in rows]


def _described_machine(name: str, table: Sites, *, on: date) -> list[tuple[str, object]]:
    """Return name and value of all that is known of a node, its GPU and its prices, with their sources."""
    node = table[name]
    gpu = table.gpu_of(node)
    priced = ("prices", "ownership")
    rows = [(title, value) for title, value in vars(node).items() if value not in (None, []) and title not in priced]
    rows += [(f"gpu {title}", value) for title, value in vars(gpu).items() if value is not None] if gpu else []
    prices = sorted(node.prices, key=lambda price: price.date) or [price for price in [node.price()] if price]
    words = [f"${one.usd_per_hour:g} an hour ({one.terms}; {one.dated(on=on)}; {one.source})" for one in prices]
    return rows + [("price", one) for one in words]


def _is_set(value: object) -> bool:
    return value not in (None, [], {}, "")


def show_status(options: argparse.Namespace) -> int:
    """Print the status of jobs; return 1 if a named one failed."""
    parent = expanded(options.jobs_folder)
    if parent.exists() and not parent.is_dir():
        raise UserError(f"jobs are in a folder. Received: --jobs-folder {parent}, a file. Name the folder")
    names = options.job or job_names(parent)
    if not names:
        print(f"no jobs in {parent}")
        return 0
    rows, failed = [], False
    for name in names:
        try:
            record, folder = read_job(name, parent=parent)
        except UserError as error:
            if options.job:
                raise
            rows.append([name, "", "", "unknown", str(error), "", ""])  # the other jobs are still shown
            continue
        try:
            state = scheduler(record.read_site().scheduler).state(record, folder)
        except UserError as error:
            state = JobStatus("unknown", str(error))
        failed |= state.state in ("failed", "cancelled")
        since = readable_seconds(seconds_since(record.submitted_at))
        rows.append([name, record.site, record.id, state.state, state.reason, f"{since} ago", ", ".join(record.runs)])
    headings = ["job", "site", "id", "state", "reason", "submitted", "run folders"]
    print(tabulate(rows, headers=headings, disable_numparse=True))
    return EXIT_CODE_FAILED if failed and options.job else 0


def show_logs(options: argparse.Namespace) -> int:
    """Print what a job has printed."""
    record, folder = read_job(options.job, parent=expanded(options.jobs_folder))
    command = scheduler(record.read_site().scheduler).logs(record, folder)
    try:
        return run_filtered(command, environment=os.environ)
    except FileNotFoundError:
        raise not_installed(command[0]) from None


def cancel_job(options: argparse.Namespace) -> None:
    """End a job."""
    record, folder = read_job(options.job, parent=expanded(options.jobs_folder))
    scheduler(record.read_site().scheduler).cancel(record, folder)
    print(f"asked {record.name} to end")
