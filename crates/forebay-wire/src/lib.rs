//! What server and client say to each other: messages, frames, batches and their buffers.
//!
//! - [`batch`]: a batch of decoded samples, the pooled page-aligned buffers its
//!   pixels live in, and the digest that proves which samples were delivered.

pub mod batch;

pub use batch::{Batch, Buffer, BufferPool, Layout, PoolStats};
