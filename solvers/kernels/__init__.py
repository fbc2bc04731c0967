"""The compiled core. Importing a module from here imports numba; nothing outside `solvers` does so."""
