"""Stage `prepare`: raw or generated images, each one checked, become one memory-mapped dataset."""
