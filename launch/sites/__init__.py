"""How jobs are started at each site: one TOML file per site, and the schema that reads them.

Not here: machines and prices (`common/sites`).
"""
