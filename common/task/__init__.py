"""The run as numbers, pure: samples and their order, the model as a spec, learning rates, shares of each update.

Here: `Task`, `Share` and `prepare`, which makes them of settings. Not here: what is measured while ranks train
(`common/strategies/balance.py`), batches (`common/data`), the life of a run (`common/run`).
"""
