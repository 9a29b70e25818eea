"""How the processes of an instance talk to each other: sockets, their keys, frames and messages."""
