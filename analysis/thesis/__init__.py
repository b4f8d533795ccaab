"""The thesis of 2021 (ResNet-34 on heterogeneous systems): its raw files as run folders, its tables and figures."""
