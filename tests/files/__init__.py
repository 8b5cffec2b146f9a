"""The host's side of `session.files`, without any sandbox."""
