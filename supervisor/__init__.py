"""Enginehouse's daemon: plans, launches, watches and shares inference engines.

The marker lets the program notice that another distribution has overwritten this package (PyPI's ``supervisor``
installs a package of the same name, and pip does not say so).
"""

ENGINEHOUSE_MARKER = "enginehouse"
__version__ = "0.1.0"
