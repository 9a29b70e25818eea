"""What a scaling policy would do to a fleet under a trace, in simulated time: `pdctl simulate` (docs/simulate.md)."""
