"""The results shown in the pages of this repository: `analysis/data` -> tables in Markdown and `analysis/figures`.

Not here: how results are computed (`analysis/questions`).
"""
