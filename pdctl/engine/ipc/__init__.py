"""How the processes of an instance communicate: sockets, their keys, frames and messages."""
