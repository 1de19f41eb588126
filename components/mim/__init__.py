"""Masked image modelling with stochastic positional embeddings: the science, in torch and timm only.

Read in this order: `grid` · `positions` · `encoder` · `predictor` · `masks` · `objectives` · `model` · `schedules` ·
`weights`. Shape letters: B images, C channels, H W pixels, h w patch grid, N = h·w patches, K context patches, M target
blocks, T patches per block, D encoder width, P predictor width.
"""
