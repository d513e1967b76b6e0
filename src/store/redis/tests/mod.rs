//! What the connection does when the server or the network does not: each test has a server of its own
//! that it kills, stops and restarts, or a proxy that loses replies.

mod faults;
mod mends;
mod proxy;
mod runtimes;
mod server;
