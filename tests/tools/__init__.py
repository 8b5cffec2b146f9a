"""Tools for models: tests that need no engine."""
