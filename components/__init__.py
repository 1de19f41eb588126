"""Every stage of the pipeline: what is legal (contract) and what is done (run)."""
