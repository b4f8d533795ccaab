"""Starting ranks: on this host, over ssh, inside a batch job.

Here: launcher commands, processes, hosts, progress, and the programs that export models. Not here: jobs that wait in a
queue (`launch/jobs`).
"""
