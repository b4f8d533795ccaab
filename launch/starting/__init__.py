"""Starting ranks: on this host, over ssh, inside a batch job.

Here: launcher commands, processes, hosts, progress. Not here: jobs that wait in a queue (`launch/jobs`).
"""
