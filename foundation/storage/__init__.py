"""Making bytes durable: written aside, synced, published by one atomic step; locks and digests."""
