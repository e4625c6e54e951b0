"""Callbacks with which frameworks save and restore a loader: the modules `hf` and `keras`, which import their framework."""
