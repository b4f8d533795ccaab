"""One HTML page of all findings."""
