"""Everything that can end a session or a machine, tried at every step."""
