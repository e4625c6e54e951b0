//! The converter: image directories to shards
