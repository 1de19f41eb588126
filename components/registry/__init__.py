"""Promoted encoders in MLflow's model registry."""
