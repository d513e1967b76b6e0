//! `ClientAddress`: where a request comes from, and how far what it says of that is believed.

use std::{net::IpAddr, sync::Arc};

use super::{
    elements::Elements,
    networks::Networks,
    node,
    warnings::{warn_of_proxies, warn_of_silence},
};
use crate::{
    gate::{fault::KeyFault, view::View},
    key::{Key, canonical_ip},
};

/// What address a client has: the socket's other end or, behind proxies, whom they speak for.
///
/// ```
/// use lockgate::{Absent, ClientAddress};
///
/// // A load balancer in one's own network, which appends to X-Forwarded-For.
/// let address = ClientAddress::behind(["10.0.0.0/8", "fd00::/8"]);
/// // Two proxies, one behind the other, whose addresses nobody knows beforehand.
/// let address = ClientAddress::behind_hops(2);
/// // A service in front of it all that tells the client in a field of its own.
/// let address = ClientAddress::behind(["198.51.100.0/24"]).header("cf-connecting-ip");
/// // Whom nobody can tell shares one quota with everybody else like it.
/// let address = address.ipv6_prefix(56).absent(Absent::Shared);
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
    trust: Trust,
    field: Field,
    prefix: u8,
    absent: Absent,
}

/// What becomes of a request whose address can't be told: the server shows no socket, a trusted proxy has
/// sent no field, or what it has written is no address (`unknown`, `_hidden`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Absent {
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
enum Trust {
    Nobody,
    Proxies(Arc<Networks>),
    Hops(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Forwarded,
    /// A list of addresses.
    List(Arc<str>),
}

/// Most proxies there can be one behind the other, as most that are looked at.
const MOST_HOPS: usize = 32;

impl ClientAddress {
    /// The socket's other end, whatever the request says.
    #[must_use]
    pub fn peer() -> Self {
        Self::trusting(Trust::Nobody)
    }

    /// Behind proxies of these networks (CIDR, or single addresses), which append to `X-Forwarded-For`.
    ///
    /// # Panics
    ///
    /// If there are none, or one is no network.
    #[must_use]
    pub fn behind<S: AsRef<str>>(proxies: impl IntoIterator<Item = S>) -> Self {
        let proxies = Networks::parse("ClientAddress::behind", proxies);
        assert!(
            !proxies.is_empty(),
            "ClientAddress::behind: name one network at least, or use peer()"
        );
        Self::trusting(Trust::Proxies(Arc::new(proxies)))
    }

    /// Behind so many proxies, 1 to 32, each of which appends to `X-Forwarded-For`: the client is the
    /// `hops`-th element from the right.
    ///
    /// Whoever can open a socket to this server counts as the nearest of them, so nobody else may be able
    /// to; prefer [`behind`](Self::behind) where the proxies' addresses are known. A request with fewer
    /// elements has come another way, and its address is [absent](Self::absent).
    ///
    /// # Panics
    ///
    /// If `hops` is not within 1 to 32.
    #[must_use]
    pub fn behind_hops(hops: usize) -> Self {
        assert!(
            (1..=MOST_HOPS).contains(&hops),
            "ClientAddress::behind_hops: {hops} proxies; there can be 1 to {MOST_HOPS}"
        );
        Self::trusting(Trust::Hops(hops))
    }

    fn trusting(trust: Trust) -> Self {
        let field = Field::List("x-forwarded-for".into());
        Self { trust, field, prefix: 64, absent: Absent::default() }
    }

    /// The proxies write `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.field = Field::Forwarded;
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
        self.field = Field::List(name.to_ascii_lowercase().into());
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
        self.prefix = bits;
        self
    }

    /// What becomes of a request whose address can't be told. Default [`Absent::Refuse`].
    #[must_use]
    pub fn absent(mut self, absent: Absent) -> Self {
        self.absent = absent;
        self
    }

    /// True if requests may pass without a key.
    pub(crate) fn may_skip(&self) -> bool {
        self.absent == Absent::Skip
    }

    /// The key of a request.
    pub(crate) fn key<V: View>(&self, view: &V) -> Result<Key, KeyFault> {
        let unknown = match self.find(view) {
            Ok(address) => return Ok(Key::network(address, self.prefix)),
            Err(unknown) => unknown,
        };
        match self.absent {
            Absent::Refuse => Err(unknown.fault()),
            Absent::Skip => Err(KeyFault::Exempt),
            Absent::Shared => Ok(Key::unknown_address()),
        }
    }

    /// The key of a request among those that share something of this process. Requests whose address
    /// can't be told have one share together, whatever [`Absent`] says.
    pub(crate) fn share<V: View>(&self, view: &V) -> Key {
        let client = match self.trust {
            // Without the warning about proxies: nobody has set it for this.
            Trust::Nobody => view.peer().map(|peer| peer.ip()),
            Trust::Proxies(_) | Trust::Hops(_) => self.find(view).ok(),
        };
        client.map_or_else(Key::unknown_address, |client| Key::network(client, self.prefix))
    }

    /// The whole address, as lists are about; `None` where a request without one may pass.
    pub(crate) fn look<V: View>(&self, view: &V) -> Result<Option<IpAddr>, KeyFault> {
        match (self.find(view), self.absent) {
            (Ok(address), _) => Ok(Some(address)),
            (Err(unknown), Absent::Refuse) => Err(unknown.fault()),
            (Err(_), Absent::Skip | Absent::Shared) => Ok(None),
        }
    }

    pub(super) fn find<V: View>(&self, view: &V) -> Result<IpAddr, Unknown> {
        let peer = view.peer().map(|peer| canonical_ip(peer.ip()));
        match &self.trust {
            Trust::Nobody => {
                warn_of_proxies(view);
                peer.ok_or(Unknown::NoPeer)
            }
            Trust::Proxies(proxies) => match peer.ok_or(Unknown::NoPeer)? {
                peer if proxies.contains(peer) => self.walk(view, proxies),
                stranger => Ok(stranger),
            },
            Trust::Hops(hops) => {
                let mut elements = self.elements(view);
                elements.nth(hops - 1).unwrap_or(Err(Unknown::Untold)).and_then(|e| self.read(e))
            }
        }
    }

    fn walk<V: View>(&self, view: &V, proxies: &Networks) -> Result<IpAddr, Unknown> {
        let mut leftmost = Err(Unknown::Untold);
        for element in self.elements(view) {
            let address = self.read(element?)?;
            if !proxies.contains(address) {
                return Ok(address);
            }
            leftmost = Ok(address);
        }
        if leftmost.is_err() {
            warn_of_silence();
        }
        leftmost
    }

    fn elements<'a, V: View>(
        &self,
        view: &'a V,
    ) -> impl Iterator<Item = Result<&'a [u8], Unknown>> {
        let (name, quotes) = match &self.field {
            Field::Forwarded => ("forwarded", true),
            Field::List(name) => (&**name, false),
        };
        let elements = Elements::new(view.header(name), quotes);
        elements.map(|element| element.map_err(|_| Unknown::Unreadable))
    }

    fn read(&self, element: &[u8]) -> Result<IpAddr, Unknown> {
        let text = str::from_utf8(element).map_err(|_| Unknown::Unreadable)?;
        let address = match &self.field {
            Field::Forwarded => node::forwarded(text),
            Field::List(_) => node::address(text),
        };
        address.ok_or(Unknown::Unreadable)
    }
}

/// Why there is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    NoPeer,
    /// Nobody says whom the proxy speaks for.
    Untold,
    /// Somebody does, in a way that is no address.
    Unreadable,
}

impl Unknown {
    fn fault(self) -> KeyFault {
        match self {
            Self::NoPeer => KeyFault::Wiring(
                "by_ip() and by_client() see no peer address; in axum serve with \
                 into_make_service_with_connect_info::<SocketAddr>()"
                    .to_owned(),
            ),
            Self::Untold | Self::Unreadable => {
                KeyFault::Request("The client's address can't be told")
            }
        }
    }
}
