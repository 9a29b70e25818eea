"""What both ends of the KV link speak and stand on: frames, sockets, the manager's thread, room states, failures."""
