//! Who is calling: the socket's other end or, behind proxies, whom they speak for.
//!
//! A header field is believed as far as it was written by proxies that are trusted. Each of them appends
//! what it saw at the other end of its own socket, so a field is read from the right: every element is
//! the word of the one before it, and the first that is no trusted proxy's is the client's. What stands
//! left of that one is the client's own word, and nothing is ever taken of it.

mod client_address;
mod forwarded_node;
mod header_elements;
mod network_set;
mod proxy_warnings;
#[cfg(test)]
mod tests;

pub use self::client_address::{ClientAddress, MissingAddress};
pub(crate) use self::network_set::NetworkSet;
