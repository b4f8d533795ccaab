"""The pipeline (`--strategy layers`): NumPy arrays and MPI messages, the same for both frameworks.

Here: which microbatch a stage computes when, messages between stages, when each was sent, and the memory that each rank
will take. Not here: where a model is cut (`common/model/partition.py`), and how a stage computes, which each framework
folder writes natively.
"""
