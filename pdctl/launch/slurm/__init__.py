"""A Slurm cluster as a place to run: one batch job, the supervisor on its first node, one step per instance."""
