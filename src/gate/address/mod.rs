//! Who is calling: the socket's other end or, behind proxies, whom they speak for.
//!
//! A header field is believed as far as it was written by proxies that are trusted. Each of them appends
//! what it saw at the other end of its own socket, so a field is read from the right: every element is
//! the word of the one before it, and the first that is no trusted proxy's is the client's. What stands
//! left of that one is the client's own word, and nothing is ever taken of it.

mod client;
mod elements;
mod networks;
mod node;
#[cfg(test)]
mod tests;
mod warnings;

pub use self::client::{Absent, ClientAddress};
pub(crate) use self::networks::Networks;
