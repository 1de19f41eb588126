"""Images on disk (memory-mapped Arrow shards) and on their way to a model."""
