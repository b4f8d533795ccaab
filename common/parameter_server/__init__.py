"""The parameter server (`--strategy server`): NumPy vectors and MPI messages, the same for both frameworks.

Here: the rules that update a shard, the processes that hold shards, the workers' side of their messages, the counter
that work is drawn from, and the schedule of an asynchronous run. Not here: how a framework's weights become one
vector, which `strategies/server.py` of each framework folder write natively.
"""
