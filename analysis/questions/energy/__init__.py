"""Energy of metered runs."""
