"""The models as plain numbers.

Here: layers, widths, pads, parameter counts, FLOPs, first weights, the framework-neutral weights file. Not here: the
models themselves, which each framework folder builds natively.
"""
