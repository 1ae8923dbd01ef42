//! `make demo`: (to be filled)
fn main() {}
