"""Forebay: shards of training images in, decoded batches out."""
from forebay._forebay import __version__
