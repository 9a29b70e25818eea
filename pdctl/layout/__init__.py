"""What follows from a topology by arithmetic: ranks, ports, links, memory, commands.

It asks no host or server, and reads no file but a model's config.json.
"""
