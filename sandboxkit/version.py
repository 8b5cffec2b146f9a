"""The version, read by the package build."""

__version__ = "0.1.0"
