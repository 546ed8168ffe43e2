"""What a log of clicks says about rankings: off-policy evaluation and interleaving."""
