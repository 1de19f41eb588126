"""Images on disk (memory-mapped Arrow shards) and on their way to a model."""

AS_THEY_CAME = "the bytes they came with"
"""How a prepared dataset stores its images, unless they were scaled down and encoded anew."""
