//! How frames travel. Each transport is one module with its socket options.

pub mod tcp;
