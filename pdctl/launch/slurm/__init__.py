"""Run on a Slurm cluster: one batch job, the supervisor on its first node, one step per instance."""
