//! The server: sessions, credits, limits
