"""Starts of ranks on hosts that a link of known bandwidth and latency joins, a rank on each (`two_hosts.py`)."""

from sites_and_jobs import own_site
from two_hosts import INTERFACE, SSH_PORT

from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start_on(hosts, folder):
    """Return how ranks are started on these hosts, each with one."""
    keys = {"ssh_port": SSH_PORT, "identity_file": hosts.identity}
    site = read_launch_site(
        own_site(folder, "hosts", name="slow", launcher="mpirun", network_interface=INTERFACE, hosts=keys)
    )
    return Launcher(site=site, hosts=[Slots(name, 1) for name in hosts.addresses], node="hosts")
