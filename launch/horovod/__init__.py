"""Our Horovod, as a thing of its own: patches of its source, and the program that builds, tries and keeps a wheel.

Not here: anything of this project. The folder works wherever it is copied; `README.md` says how.
"""
