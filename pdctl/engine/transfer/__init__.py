"""The seam behind which KV bytes move: nixl, shm, fake."""
