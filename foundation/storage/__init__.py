"""Durable storage: atomic publishing, locks and digests."""
