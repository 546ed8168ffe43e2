"""Models on their way from one registry to another: one deterministic tar file, checked to the last byte before it counts."""
