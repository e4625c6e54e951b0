//! What server and client say to each other: messages, frames, batches and their buffers
