"""The bubblewrap backend: what a sandbox on the host's own programs holds back, and what it is made from."""
