"""Reads run folders and common's tables: tables and plots. Imports no framework and no trainer."""
