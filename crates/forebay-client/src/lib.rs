//! A light client of a Forebay server
