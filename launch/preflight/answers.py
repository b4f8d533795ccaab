"""What hosts answered to a preflight, what a check says about it, and how lines on several hosts are written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from common.checks.preflight_worker import ExchangeReport
from launch.preflight.host_probe import HostProbe

Result = Literal["ok", "failed", "not checked"]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What was answered.

    Attributes:
        probes: host -> what it tells.
        unreached: host -> the line that says why it tells nothing.
        windows: host -> this machine's Unix time before it was asked and after it had answered.
        met: hosts whose file is seen here in the folder of runs.
        missing_programs: of the scheduler.
        srun_mpi: the kinds that `srun --mpi=list` names, or why it names none; None: not asked.
        exchange: what the ranks found, or why there is nothing; None: not started.
        seconds: how long the questions took that are none to a single host: "pmi", "allreduce".
    """

    probes: Mapping[str, HostProbe] = field(default_factory=dict)
    unreached: Mapping[str, str] = field(default_factory=dict)
    windows: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    met: frozenset[str] = frozenset()
    missing_programs: tuple[str, ...] = ()
    srun_mpi: tuple[str, ...] | str | None = None
    exchange: ExchangeReport | str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def untold(self, part: str, *, remedy: str = "") -> list[str]:
        """Return the lines on hosts that could not tell a part."""
        errors = {host: probe.errors[part] for host, probe in self.probes.items() if part in probe.errors}
        return on_hosts((host, f"{error}. {remedy}" if remedy else error) for host, error in errors.items())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check says: `failures` and `unknown` are whole lines, `found` a few words where all is well."""

    found: str = ""
    failures: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def result(self) -> Result:
        """The worst of it."""
        return "failed" if self.failures else "not checked" if self.unknown else "ok"

    @property
    def lines(self) -> list[str]:
        """All that is to be shown."""
        return [*self.failures, *self.unknown] or [self.found]


def on_hosts(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Return (host, message) pairs as lines, the hosts of one message together."""
    hosts: dict[str, list[str]] = {}
    for host, message in messages:
        hosts.setdefault(message, []).append(host)
    return [f"{', '.join(names)}: {message}" for message, names in hosts.items()]


def differences(values: Mapping[str, Any], *, what: str, remedy: str) -> list[str]:
    """Return lines on hosts whose value is not that of the first host."""
    first = next(iter(values), "")
    return on_hosts(
        (host, f"{what} is {value or 'missing'}, on {first} it is {values[first] or 'missing'}. {remedy}")
        for host, value in values.items()
        if value != values[first]
    )
