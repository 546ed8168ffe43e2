"""What is known of every feature without reading it again: counted while its columns are written, a small file a shard."""
