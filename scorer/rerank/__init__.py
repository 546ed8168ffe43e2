"""Re-ranking of candidates: plan, score, spill, write, journal."""
