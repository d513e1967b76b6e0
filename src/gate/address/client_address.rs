//! `ClientAddress`: where a request comes from, and how far what it says of that is believed.

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

/// What address a client has: the socket's other end or, behind proxies, whom they speak for.
///
/// ```
/// use lockgate::{MissingAddress, ClientAddress};
///
/// // A load balancer in one's own network, which appends to X-Forwarded-For.
/// let address = ClientAddress::behind_proxies(["10.0.0.0/8", "fd00::/8"]);
/// // Two proxies, one behind the other, whose addresses nobody knows beforehand.
/// let address = ClientAddress::behind_hops(2);
/// // A service in front of it all that tells the client in a field of its own.
/// let address = ClientAddress::behind_proxies(["198.51.100.0/24"]).header("cf-connecting-ip");
/// // Whom nobody can tell shares one quota with everybody else like it.
/// let address = address.ipv6_prefix(56).on_missing(MissingAddress::Shared);
/// ```
///
/// The field is read from the right, over all its lines: each element is the word of the proxy before it,
/// so the first that isn't a trusted proxy's address is the client's, and what stands left of it is what
/// the client itself has sent. Nothing is believed of a request whose own socket is no trusted proxy's. If
/// all elements are trusted proxies, the client is the leftmost of them.
///
/// Name the field that *your* proxies write: they pass all others on as the client sent them.
///
/// Ports and zones don't count, an IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`, and
/// `64:ff9b::192.0.2.1` of NAT64) is the IPv4 address, and IPv6 addresses count by their network, of 64 bits by default. At most 32 elements and 4 KiB
/// are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAddress {
    proxy_trust: ProxyTrust,
    address_header: AddressHeader,
    ipv6_prefix: u8,
    on_missing: MissingAddress,
}

/// What becomes of a request whose address can't be told: the server shows no socket, a trusted proxy has
/// sent no field, or what it has written is no address (`unknown`, `_hidden`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingAddress {
    /// It is refused: 400, or 500 and a log line if the server shows no socket, since that is wired
    /// wrongly. The default: whoever can hide must gain nothing by it.
    #[default]
    Refuse,
    /// It passes, and no quota is charged. Whoever can make a trusted proxy hide it has no limit. A lock
    /// can't be had like that: `LockLayer` does not take it.
    Skip,
    /// It counts as one client together with all others like it, who can spend each other's quota.
    Shared,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ProxyTrust {
    PeerOnly,
    Proxies(Arc<NetworkSet>),
    Hops(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressHeader {
    Forwarded,
    /// A list of addresses.
    List(Arc<str>),
}

/// Most proxies there can be one behind the other, as most that are looked at.
const MAX_HOPS: usize = 32;

impl ClientAddress {
    /// The socket's other end, whatever the request says.
    #[must_use]
    pub fn peer() -> Self {
        Self::with_trust(ProxyTrust::PeerOnly)
    }

    /// Behind proxies of these networks (CIDR, or single addresses), which append to `X-Forwarded-For`.
    ///
    /// # Panics
    ///
    /// If there are none, or one is no network.
    #[must_use]
    pub fn behind_proxies<S: AsRef<str>>(proxies: impl IntoIterator<Item = S>) -> Self {
        let proxies = NetworkSet::parse("ClientAddress::behind", proxies);
        assert!(
            !proxies.is_empty(),
            "ClientAddress::behind: name one network at least, or use peer()"
        );
        Self::with_trust(ProxyTrust::Proxies(Arc::new(proxies)))
    }

    /// Behind so many proxies, 1 to 32, each of which appends to `X-Forwarded-For`: the client is the
    /// `hops`-th element from the right.
    ///
    /// Whoever can open a socket to this server counts as the nearest of them, so nobody else may be able
    /// to; prefer [`behind`](Self::behind_proxies) where the proxies' addresses are known. A request with fewer
    /// elements has come another way, and its address is [absent](Self::on_missing).
    ///
    /// # Panics
    ///
    /// If `hops` is not within 1 to 32.
    #[must_use]
    pub fn behind_hops(hops: usize) -> Self {
        assert!(
            (1..=MAX_HOPS).contains(&hops),
            "ClientAddress::behind_hops: {hops} proxies; there can be 1 to {MAX_HOPS}"
        );
        Self::with_trust(ProxyTrust::Hops(hops))
    }

    fn with_trust(trust: ProxyTrust) -> Self {
        let field = AddressHeader::List("x-forwarded-for".into());
        Self {
            proxy_trust: trust,
            address_header: field,
            ipv6_prefix: 64,
            on_missing: MissingAddress::default(),
        }
    }

    /// The proxies write `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded_header(mut self) -> Self {
        self.address_header = AddressHeader::Forwarded;
        self
    }

    /// The proxies write this field instead of `X-Forwarded-For`: one address, or a list of them.
    ///
    /// # Panics
    ///
    /// If it is no header field's name.
    #[must_use]
    pub fn header(mut self, name: &str) -> Self {
        let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
        assert!(is_name, "ClientAddress::header: `{name}` is no header field's name");
        self.address_header = AddressHeader::List(name.to_ascii_lowercase().into());
        self
    }

    /// By how many bits IPv6 addresses count, 32 to 128. Default 64: a single host usually has that many
    /// addresses to choose from, and many a site a block of 56 or 48.
    ///
    /// # Panics
    ///
    /// If `bits` is not within 32 to 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(
            (32..=128).contains(&bits),
            "ClientAddress::ipv6_prefix: {bits} bits; there can be 32 to 128"
        );
        self.ipv6_prefix = bits;
        self
    }

    /// What becomes of a request whose address can't be told. Default [`MissingAddress::Refuse`].
    #[must_use]
    pub fn on_missing(mut self, absent: MissingAddress) -> Self {
        self.on_missing = absent;
        self
    }

    /// True if requests may pass without a key.
    pub(crate) fn may_lack_address(&self) -> bool {
        self.on_missing == MissingAddress::Skip
    }

    /// The key of a request.
    pub(crate) fn key<V: GateRequest>(&self, view: &V) -> Result<Key, KeyError> {
        let unknown = match self.resolve(view) {
            Ok(address) => return Ok(Key::network(address, self.ipv6_prefix)),
            Err(unknown) => unknown,
        };
        match self.on_missing {
            MissingAddress::Refuse => Err(unknown.into_key_error()),
            MissingAddress::Skip => Err(KeyError::Exempt),
            MissingAddress::Shared => Ok(Key::unknown_address()),
        }
    }

    /// The key of a request among those that share something of this process. Requests whose address
    /// can't be told have one share together, whatever [`MissingAddress`] says.
    pub(crate) fn budget_key<V: GateRequest>(&self, view: &V) -> Key {
        let client = match self.proxy_trust {
            // Without the warning about proxies: nobody has set it for this.
            ProxyTrust::PeerOnly => view.peer_addr().map(|peer| peer.ip()),
            ProxyTrust::Proxies(_) | ProxyTrust::Hops(_) => self.resolve(view).ok(),
        };
        client.map_or_else(Key::unknown_address, |client| Key::network(client, self.ipv6_prefix))
    }

    /// The whole address, as lists are about; `None` where a request without one may pass.
    pub(crate) fn address_for_lists<V: GateRequest>(
        &self,
        view: &V,
    ) -> Result<Option<IpAddr>, KeyError> {
        match (self.resolve(view), self.on_missing) {
            (Ok(address), _) => Ok(Some(address)),
            (Err(unknown), MissingAddress::Refuse) => Err(unknown.into_key_error()),
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
                stranger => Ok(stranger),
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
        let mut leftmost = Err(ClientAddressError::Missing);
        for element in self.header_elements(view) {
            let address = self.parse_element(element?)?;
            if !proxies.contains(address) {
                return Ok(address);
            }
            leftmost = Ok(address);
        }
        if leftmost.is_err() {
            warn_missing_forwarding();
        }
        leftmost
    }

    fn header_elements<'a, V: GateRequest>(
        &self,
        view: &'a V,
    ) -> impl Iterator<Item = Result<&'a [u8], ClientAddressError>> {
        let (name, quotes) = match &self.address_header {
            AddressHeader::Forwarded => ("forwarded", true),
            AddressHeader::List(name) => (&**name, false),
        };
        let elements = HeaderElements::new(view.header_values(name), quotes);
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

/// Why there is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAddressError {
    NoPeer,
    /// Nobody says whom the proxy speaks for.
    Missing,
    /// Somebody does, in a way that is no address.
    Malformed,
}

impl ClientAddressError {
    fn into_key_error(self) -> KeyError {
        match self {
            Self::NoPeer => KeyError::Misconfigured(
                "by_ip() and by_client() see no peer address; in axum serve with \
                 into_make_service_with_connect_info::<SocketAddr>()"
                    .to_owned(),
            ),
            Self::Missing | Self::Malformed => {
                KeyError::BadRequest("The client's address can't be told")
            }
        }
    }
}
