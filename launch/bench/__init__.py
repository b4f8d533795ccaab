"""The trainers' speed, their start and their memory, in pairs of turns.

Not here: what the ranks do in their turns (`common/checks`, `bench_worker.py` of the frameworks), tables (`analysis`).
"""
