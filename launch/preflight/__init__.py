"""Checks before a job waits or runs: hosts, software, network, data, one all-reduce.

`target.py` says what to inspect, `survey.py` asks every host (`host_probe.py` runs there) and starts the ranks,
`checks.py` judges the answers, `command.py` prints the table.

Not here: checks of the project's own results (`launch/checks`).
"""
