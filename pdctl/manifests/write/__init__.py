"""Turn the plan that `pdctl plan --target kubernetes` prints into manifests: `pdctl render kubernetes`.

The commands are the plan's own. An instance is a group of pods, one per node of the instance, created from one
template; what differs from node to node (the rank, the leader's address) comes from variables that the operator sets.
See docs/kubernetes.md.
"""
