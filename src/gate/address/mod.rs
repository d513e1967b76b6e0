//! Client addresses: the peer of the socket or, behind proxies, the address that they forward.
//!
//! Each proxy appends its peer's address to a header, so the header is read from the right. An
//! element is trusted as far as trusted proxies wrote it: the first element that is not a trusted
//! proxy's address is the client's. Elements left of it were sent by the client and are ignored.

mod client_address;
mod client_settings;
mod forwarded_node;
mod header_elements;
mod network_set;
mod proxy_warnings;
#[cfg(test)]
mod tests;

pub use self::client_address::{ClientAddress, MissingAddress};
pub(crate) use self::network_set::NetworkSet;
