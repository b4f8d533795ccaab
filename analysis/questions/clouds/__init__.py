"""The same experiment on different sites: time, accuracy, cost, energy, start-up."""
