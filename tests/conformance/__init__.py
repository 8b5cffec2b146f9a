"""The shipped suite, on every backend of the project and on the agent without any engine."""
