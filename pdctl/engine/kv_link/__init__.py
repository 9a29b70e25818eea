"""What both ends of the KV link share: frames, sockets, the manager's thread, room states, failures."""
