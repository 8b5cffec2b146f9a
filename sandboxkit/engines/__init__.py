"""What backends over a container engine's HTTP API have in common; Docker's and Podman's are built on it.

`EngineBackend` implements the Backend contract over an `EngineApi`, which is all that one engine has to bring. No
engine's SDK is imported here.
"""
