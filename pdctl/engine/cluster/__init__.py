"""The processes of an instance, over all of its nodes: started, introduced to each other, ended together."""
