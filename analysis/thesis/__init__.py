"""The thesis of 2021 (ResNet-34 on heterogeneous systems): its raw files as run folders, its tables and figures.

Not here: the results as printed in the thesis (`analysis/runs`).
"""
