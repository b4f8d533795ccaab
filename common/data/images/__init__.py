"""Folders of images as data sets, and files of prepared images.

Here: reading a folder, preparing it into one file, drawing sample images. Not here: published data sets.
"""
