"""Ranks that come and go: what each keeps of the run in memory, and how those that are there go on.

Here: copies of the run's state, how they are shared out anew, what happened to the ranks. Not here: Horovod's part
(`elastic.py` of each framework folder), and what starts the ranks (`launch/starting/elastic.py`).
"""
