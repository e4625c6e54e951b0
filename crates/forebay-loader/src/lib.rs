//! The pipeline: plan, fetch, decode, transform, batch
