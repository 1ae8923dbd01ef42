//! The stub seen from outside: a process, a Unix socket, plain HTTP.

mod fail;
mod stop;
mod stream;
mod stub;
mod surface;
