"""What the two frameworks share when they are compared, benchmarked or checked before a run.

Here: the framework-free half of the parity, bench and preflight workers. Not here: starting them (`launch/checks`,
`launch/preflight`).
"""
