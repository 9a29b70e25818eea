"""The seam behind which KV bytes move: nixl, mooncake, shm, fake."""
