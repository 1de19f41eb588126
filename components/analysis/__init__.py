"""The paper's figures (§4.3, Figures 4–6), drawn from a run's own encoder, predictor and curves."""
