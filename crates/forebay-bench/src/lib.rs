//! Measurements: reading, loading, streaming
