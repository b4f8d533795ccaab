"""Sites: machines and dated prices with their sources (`sites.toml`, or a table of the user's own).

    python -m launch sites        # a table of all; `python -m launch sites NAME` prints one

`launch` uses it for estimates, `analysis` for costs.
"""

import re
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from common.errors import UserError
from common.json_records import Record, validated
from common.sites.prices import Ownership, Positive, Price
from common.utils.printable import suggestion
from common.utils.whole_files import read_toml

SITES_FILE = Path(__file__).with_name("sites.toml")
SECONDS_PER_HOUR = 3600.0
BITS_PER_BYTE = 8
Count = Annotated[int, Field(gt=0, le=10**6)]


@dataclass(frozen=True, kw_only=True)
class Gpu(Record):
    """A GPU as described by its manufacturer.

    Attributes:
        fp32_tflops, tensor_tflops: peaks, 10^12 operations per second; tensor: float16 on tensor cores, None without.
        memory_gb: 10^9 bytes.
        memory_bandwidth_gb_s: peak; None: not published.
        power_watts: limit of the board.
        energy_counter: whether the driver counts joules (since Volta); otherwise power has to be integrated.
        compute_capability: what it can run, as compilers of CUDA count it: "8.6".
        memory_bus_bits: width of the memory bus.
        cores, clock_ghz: of its CUDA cores.
        purchase_usd: purchase price, if the source states it.
    """

    name: str
    fp32_tflops: Positive
    memory_gb: Positive
    power_watts: Positive
    energy_counter: bool
    source: str
    memory_bandwidth_gb_s: Positive | None = None
    tensor_tflops: Positive | None = None
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None
    memory_bus_bits: Count | None = None
    cores: Count | None = None
    clock_ghz: Positive | None = None
    purchase_usd: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Cpu(Record):
    """A processor to compare GPUs with; fields as in `Gpu`, `threads` is the number of hardware threads."""

    name: str
    fp32_tflops: Positive
    cores: Count
    threads: Count
    clock_ghz: Positive
    source: str
    memory_bandwidth_gb_s: Positive | None = None
    purchase_usd: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Site(Record):
    """A site with nodes of one kind. None: unknown, or recorded by each run.

    Attributes:
        kind: owned machines have no price per hour but the one of `ownership`.
        instance_type: the provider's name of the node.
        accelerator: the provider's name and number of its GPUs, where the instance type does not imply them.
        cores: of a node; vCPUs if it is rented.
        gpu: key in the table's GPUs.
        gpus: of a node.
        host_link_gb_s: peak from memory to each GPU, one way.
        gpu_link_gb_s: peak from a GPU to the others of its node, one way: half of what data sheets of NVLink state.
        network: of a node, in words with its Gb/s.
        retired: date of retirement.
        successor: the site to use instead.
        prices: by date; empty for owned machines.
        ownership: what an owned node costs.
    """

    title: str
    kind: Literal["owned", "rented"]
    source: str
    instance_type: str | None = None
    accelerator: str | None = None
    processor: str | None = None
    cores: Count | None = None
    memory_gb: Positive | None = None
    gpu: str | None = None
    gpus: Annotated[int, Field(ge=0, le=10**6)] = 0
    host_link_gb_s: Positive | None = None
    gpu_link_gb_s: Positive | None = None
    network: str | None = None
    retired: date | None = None
    successor: str | None = None
    prices: list[Price] = field(default_factory=list)
    ownership: Ownership | None = None

    @property
    def network_bytes_per_second(self) -> float | None:
        """Peak bandwidth of a node's network; None: not known."""
        speed = re.search(r"([0-9.]+) Gb/s", self.network or "")
        return 1e9 * float(speed[1]) / BITS_PER_BYTE if speed else None

    def price(self, *, on: date | None = None, spot: bool = False) -> Price | None:
        """Return the price valid on a day (None: the latest): the last one dated until then, else the first."""
        if self.ownership and not spot:
            return self.ownership.price
        by_date = sorted((price for price in self.prices if price.spot == spot), key=lambda price: price.date)
        until = [price for price in by_date if on is None or price.date <= on]
        return until[-1] if until else by_date[0] if by_date else None

    def cost_usd(self, seconds: float, *, nodes: int = 1, on: date | None = None) -> float | None:
        """Return nodes x time x price of a node; None without a price."""
        price = self.price(on=on)
        return None if price is None else nodes * seconds / SECONDS_PER_HOUR * price.usd_per_hour


@dataclass(frozen=True, kw_only=True)
class Sites(Record):
    """The whole table: name -> GPU, name -> site, name -> processor."""

    gpus: dict[str, Gpu]
    sites: dict[str, Site]
    cpus: dict[str, Cpu] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Site:
        """Return a site.

        Raises:
            UserError: unknown name.
        """
        if name in self.sites:
            return self.sites[name]
        meant = suggestion(name, self.sites)
        raise UserError(f"unknown site. Received: {name or repr(name)}. {meant}`python -m launch sites` shows all")

    def gpu_of(self, site: Site) -> Gpu | None:
        """Return the GPU of a site's nodes, if any."""
        return self.gpus[site.gpu] if site.gpu else None

    def cpu_of(self, site: Site) -> Cpu | None:
        """Return the processors of a site's nodes, if the table has them: by their name."""
        return next((cpu for cpu in self.cpus.values() if cpu.name == site.processor), None)


LAUNCH_TABLE = "launch"  # the table of a site file that `launch` reads


def read_sites(path: Path = SITES_FILE) -> Sites:
    """Read and check a table of sites.

    Args:
        path: a user's table extends the project's; the values that it names of a site or GPU replace the project's.

    Raises:
        UserError: it cannot be read, does not follow the schema, or names an unknown GPU or successor.
    """
    own = read_toml(path, what="table of sites")
    own.pop(LAUNCH_TABLE, None)
    shipped = {} if path == SITES_FILE else read_toml(SITES_FILE, what="table of sites")
    for name, entries in shipped.items():
        if isinstance(own.setdefault(name, {}), dict):
            own[name] = {**entries, **{key: _extended(entries.get(key), mine) for key, mine in own[name].items()}}
    table = validated(Sites, own, place=path, what="a valid table of sites", remedy="Fix the file")
    _check(table, path=path)
    return table


def _extended(shipped: Any, mine: Any) -> Any:
    """Return an entry of the project's table with the user's values over its own; an entry of one alone as it is."""
    return {**shipped, **mine} if isinstance(shipped, dict) and isinstance(mine, dict) else mine


def _check(table: Sites, *, path: Path) -> None:
    for name, site in table.sites.items():
        for what, received, known in (("gpu", site.gpu, table.gpus), ("successor", site.successor, table.sites)):
            if received is not None and received not in known:
                raise UserError(
                    f"{path} is not a valid table of sites: the {what} of {name} is not in the table. "
                    f"Received: {received}. Use one of {', '.join(known)}"
                )
        if site.ownership and site.kind != "owned":
            raise UserError(
                f"{path} is not a valid table of sites: only owned machines have costs of ownership. "
                f"Received: [sites.{name}.ownership] of a {site.kind} machine. Leave it out"
            )
        if (site.gpu is None) != (site.gpus == 0):
            raise UserError(
                f"{path} is not a valid table of sites: {name} needs both `gpu` and `gpus`, or neither. "
                f"Received: {site.gpu} and {site.gpus}. Fix the file"
            )
