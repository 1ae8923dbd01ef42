//! (to be filled)
fn main() {}
