//! `ClientAddress`: the client's address, and the proxies that may forward it.

use std::{net::IpAddr, sync::Arc};

use super::{
    forwarded_node,
    header_elements::HeaderElements,
    network_set::NetworkSet,
    proxy_warnings::{warn_ignored_forwarding, warn_missing_forwarding},
};
use crate::{
    gate::{gate_request::GateRequest, key_error::KeyError},
    key::{Key, canonical_ip},
};

/// Source of a client's address: the peer of the socket or, behind proxies, the address that they
/// forward.
///
/// ```
/// use lockgate::{MissingAddress, ClientAddress};
///
/// // A load balancer in the service's own network, which appends to X-Forwarded-For.
/// let address = ClientAddress::behind_proxies(["10.0.0.0/8", "fd00::/8"]);
/// // Two proxies in a row with addresses that are not known in advance.
/// let address = ClientAddress::behind_hops(2);
/// // A CDN that sends the client's address in a header of its own.
/// let address = ClientAddress::behind_proxies(["198.51.100.0/24"]).header("cf-connecting-ip");
/// // Clients without an address share one quota.
/// let address = address.ipv6_prefix(56).on_missing(MissingAddress::Shared);
/// ```
///
/// The header is read from the right, over all its lines, because each proxy appends the address of
/// its own peer. The first element that is not a trusted proxy's address is the client's; elements
/// left of it were sent by the client and are ignored. If all elements are trusted proxies, the
/// client is the leftmost of them. The header counts only if the request's peer is a trusted proxy
/// itself.
///
/// Name the header that *your* proxies write: they pass all other headers on as the client sent
/// them.
///
/// Addresses are normalized:
///
/// - Ports and zones are ignored.
/// - An IPv4 address written as IPv6 (`::ffff:192.0.2.1`, and `64:ff9b::192.0.2.1` of NAT64) is the
///   IPv4 address.
/// - IPv6 addresses count by their network, of 64 bits by default.
///
/// At most 32 elements and 4 KiB of the header are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAddress {
    pub(super) proxy_trust: ProxyTrust,
    pub(super) address_header: AddressHeader,
    pub(super) ipv6_prefix: u8,
    pub(super) on_missing: MissingAddress,
}

/// Reaction to a request without a client address.
///
/// An address is missing if the server provides no peer address, if a trusted proxy sent no header,
/// or if the header's value is not an address (`unknown`, `_hidden`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingAddress {
    /// Refuses the request: 400, or 500 and a log record if the server provides no peer address,
    /// since that is a configuration error. The default, so that hiding an address gains nothing.
    #[default]
    Refuse,
    /// Admits the request without charging a quota. A client that can make a trusted proxy hide its
    /// address then has no limit. `LockLayer` rejects this setting.
    Skip,
    /// Counts all requests without an address as one client; they spend each other's quota.
    Shared,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProxyTrust {
    PeerOnly,
    Proxies(Arc<NetworkSet>),
    Hops(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressHeader {
    Forwarded,
    /// Header that holds a list of addresses.
    List(Arc<str>),
}

impl ClientAddress {
    /// Returns true if requests without an address pass without a key.
    pub(crate) fn may_lack_address(&self) -> bool {
        self.on_missing == MissingAddress::Skip
    }

    /// Returns the key of a request.
    pub(crate) fn key<V: GateRequest>(&self, view: &V) -> Result<Key, KeyError> {
        let address_error = match self.resolve(view) {
            Ok(address) => return Ok(Key::network(address, self.ipv6_prefix)),
            Err(address_error) => address_error,
        };
        match self.on_missing {
            MissingAddress::Refuse => Err(address_error.into_key_error()),
            MissingAddress::Skip => Err(KeyError::Exempt),
            MissingAddress::Shared => Ok(Key::unknown_address()),
        }
    }

    /// Returns the key of a request for resources shared within this process. All requests without
    /// an address have one key, independent of [`MissingAddress`].
    pub(crate) fn budget_key<V: GateRequest>(&self, view: &V) -> Key {
        let client = match self.proxy_trust {
            // Without the warning about proxies: this address was not configured by the
            // application.
            ProxyTrust::PeerOnly => view.peer_addr().map(|peer| peer.ip()),
            ProxyTrust::Proxies(_) | ProxyTrust::Hops(_) => self.resolve(view).ok(),
        };
        client.map_or_else(Key::unknown_address, |client| Key::network(client, self.ipv6_prefix))
    }

    /// Returns the full address for access lists; `None` for a request without one that is not
    /// refused.
    pub(crate) fn address_for_lists<V: GateRequest>(
        &self,
        view: &V,
    ) -> Result<Option<IpAddr>, KeyError> {
        match (self.resolve(view), self.on_missing) {
            (Ok(address), _) => Ok(Some(address)),
            (Err(address_error), MissingAddress::Refuse) => Err(address_error.into_key_error()),
            (Err(_), MissingAddress::Skip | MissingAddress::Shared) => Ok(None),
        }
    }

    pub(super) fn resolve<V: GateRequest>(&self, view: &V) -> Result<IpAddr, ClientAddressError> {
        let peer = view.peer_addr().map(|peer| canonical_ip(peer.ip()));
        match &self.proxy_trust {
            ProxyTrust::PeerOnly => {
                warn_ignored_forwarding(view);
                peer.ok_or(ClientAddressError::NoPeer)
            }
            ProxyTrust::Proxies(proxies) => match peer.ok_or(ClientAddressError::NoPeer)? {
                peer if proxies.contains(peer) => self.first_untrusted(view, proxies),
                untrusted_peer => Ok(untrusted_peer),
            },
            ProxyTrust::Hops(hops) => {
                let mut elements = self.header_elements(view);
                elements
                    .nth(hops - 1)
                    .unwrap_or(Err(ClientAddressError::Missing))
                    .and_then(|e| self.parse_element(e))
            }
        }
    }

    fn first_untrusted<V: GateRequest>(
        &self,
        view: &V,
        proxies: &NetworkSet,
    ) -> Result<IpAddr, ClientAddressError> {
        let mut leftmost_address = Err(ClientAddressError::Missing);
        for element in self.header_elements(view) {
            let address = self.parse_element(element?)?;
            if !proxies.contains(address) {
                return Ok(address);
            }
            leftmost_address = Ok(address);
        }
        if leftmost_address.is_err() {
            warn_missing_forwarding();
        }
        leftmost_address
    }

    fn header_elements<'a, V: GateRequest>(
        &self,
        view: &'a V,
    ) -> impl Iterator<Item = Result<&'a [u8], ClientAddressError>> {
        let (name, allow_quotes) = match &self.address_header {
            AddressHeader::Forwarded => ("forwarded", true),
            AddressHeader::List(name) => (&**name, false),
        };
        let elements = HeaderElements::new(view.header_values(name), allow_quotes);
        elements.map(|element| element.map_err(|_| ClientAddressError::Malformed))
    }

    fn parse_element(&self, element: &[u8]) -> Result<IpAddr, ClientAddressError> {
        let text = str::from_utf8(element).map_err(|_| ClientAddressError::Malformed)?;
        let address = match &self.address_header {
            AddressHeader::Forwarded => forwarded_node::parse_forwarded_for(text),
            AddressHeader::List(_) => forwarded_node::parse_address(text),
        };
        address.ok_or(ClientAddressError::Malformed)
    }
}

/// Reason why a request has no client address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAddressError {
    NoPeer,
    /// No header of a trusted proxy, or too few elements.
    Missing,
    /// The element is not an address, or the header exceeds the limits of `HeaderElements`.
    Malformed,
}

impl ClientAddressError {
    fn into_key_error(self) -> KeyError {
        match self {
            Self::NoPeer => KeyError::Misconfigured(
                "by_ip() and by_client() found no peer address; in axum serve with \
                 into_make_service_with_connect_info::<SocketAddr>()"
                    .to_owned(),
            ),
            Self::Missing | Self::Malformed => {
                KeyError::BadRequest("The client's address can't be told")
            }
        }
    }
}
