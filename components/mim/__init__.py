"""Masked image modelling with stochastic positional embeddings: the science, in torch and timm only.

Read in this order: `grid` · `keys` · `blocks` · `masks` (`legacy_masks`) · `positions` · `encoder` · `predictor` ·
`objectives` · `model` · `diagnostics` · `schedules` · `initialise` · `weights`; then, for encoders of other programs,
`checkpoints` · `layouts` · `conversion` · `normalisation` · `timm_encoder` · `export`. Shape letters: B images, C channels (or
prefix tokens, in C+N), H W pixels, h w patch grid, N = h·w patches, K context patches, M target blocks, T patches per
block, D encoder width, P predictor width.
"""
