"""Everything that goes wrong on request: faults, mistakes of real deployments, a modelled network."""
