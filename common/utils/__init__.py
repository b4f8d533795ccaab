"""Small helpers of every program: files written in one step, command lines, paths, timestamps, worker processes.

Not here: anything that knows of training, data or run folders.
"""
