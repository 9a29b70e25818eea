"""What follows from a topology by arithmetic alone: ranks, ports, links, memory, commands. Pure."""
