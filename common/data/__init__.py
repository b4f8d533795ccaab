"""Data sets: fetched, checked, cached, cut into shards and turned into batches, in NumPy.

Here: the catalog of published data sets, their sources and formats, the cache, synthetic data, the order of the
samples, batches. Not here: tensors of a framework (`torch_impl/data.py`, `keras_impl/data.py`).
"""
