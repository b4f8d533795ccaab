"""The ring all-reduce, pass by pass."""
