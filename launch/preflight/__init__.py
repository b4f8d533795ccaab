"""Checks of hosts, software and data before a job waits or runs."""
