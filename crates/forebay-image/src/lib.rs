//! Pixels: probe, decode, crop, resize, flip and batch layout, with limits
