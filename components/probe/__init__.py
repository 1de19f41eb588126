"""Classifiers on frozen features, shared by linear_probe and clevr: a grid of linear heads, nearest neighbours."""
