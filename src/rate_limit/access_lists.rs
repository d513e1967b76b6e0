//! Who is let through uncounted, and who not at all.

use std::{collections::HashSet, sync::Arc};

use crate::{
    gate::{ClientAddress, GateRequest, KeyError, NetworkSet},
    key::Key,
};

/// Who is let through uncounted, and who not at all, by address or by key.
///
/// ```
/// use lockgate::{Key, AccessLists};
///
/// let lists = AccessLists::new()
///     .allow(["10.0.0.0/8", "2001:db8::/32"]) // our own, health checks
///     .allow_key(Key::header("x-api-key", b"batch"))
///     .deny(["203.0.113.0/24"]);
/// ```
///
/// Who is denied is answered with 403 and without `Retry-After`, since no waiting will help: 429 would
/// promise that it does. Neither is charged, nor is the store asked. Who is on both lists is denied. Of a layer within a lock
/// that holds for runs of deferred requests, which did not come to it before: a 403 makes them dead letters (`auth`).
///
/// An address is the one that the layer's key is made of (`by_ip`, `by_client`; of several policies, the
/// first with one), whole, before it is cut to its network; else the socket's other end, or what [`client`](Self::client_address) says. A key is one of those that
/// the layer reads from the request, such as [`Key::header`] with `by_header`.
#[derive(Debug, Clone, Default)]
pub struct AccessLists {
    allow_list: AccessList,
    deny_list: AccessList,
    client_address: Option<Arc<ClientAddress>>,
}

#[derive(Debug, Clone, Default)]
struct AccessList {
    networks: Arc<NetworkSet>,
    keys: Arc<HashSet<Key>>,
}

/// Where the lists have a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessListMatch {
    Unlisted,
    Allowed,
    Denied,
}

impl AccessLists {
    /// Empty ones.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets these addresses and networks (CIDR) through uncounted.
    ///
    /// # Panics
    ///
    /// If one is neither.
    #[must_use]
    pub fn allow<S: AsRef<str>>(mut self, networks: impl IntoIterator<Item = S>) -> Self {
        self.allow_list.add_networks(NetworkSet::parse("Lists::allow", networks));
        self
    }

    /// Refuses these addresses and networks (CIDR).
    ///
    /// # Panics
    ///
    /// If one is neither.
    #[must_use]
    pub fn deny<S: AsRef<str>>(mut self, networks: impl IntoIterator<Item = S>) -> Self {
        self.deny_list.add_networks(NetworkSet::parse("Lists::deny", networks));
        self
    }

    /// Lets requests of this key through uncounted.
    #[must_use]
    pub fn allow_key(mut self, key: Key) -> Self {
        Arc::make_mut(&mut self.allow_list.keys).insert(key);
        self
    }

    /// Refuses requests of this key.
    #[must_use]
    pub fn deny_key(mut self, key: Key) -> Self {
        Arc::make_mut(&mut self.deny_list.keys).insert(key);
        self
    }

    /// The address that the networks are about. Default: that of the layer's key if it is one, else the
    /// socket's other end. A request whose address can't be told is refused, or else on neither list, as
    /// [`ClientAddress::on_missing`] says.
    #[must_use]
    pub fn client_address(mut self, address: ClientAddress) -> Self {
        self.client_address = Some(Arc::new(address));
        self
    }

    /// By the request's address; `of_key` is what the layer's key is made of.
    pub(super) fn match_address<V: GateRequest>(
        &self,
        view: &V,
        of_key: Option<&ClientAddress>,
    ) -> Result<AccessListMatch, KeyError> {
        if self.allow_list.networks.is_empty() && self.deny_list.networks.is_empty() {
            return Ok(AccessListMatch::Unlisted);
        }
        let address = match self.client_address.as_deref().or(of_key) {
            Some(client) => client.address_for_lists(view)?,
            None => ClientAddress::peer().address_for_lists(view)?,
        };
        let is_on =
            |list: &AccessList| address.is_some_and(|address| list.networks.contains(address));
        Ok(self.match_lists(is_on))
    }

    pub(super) fn has_denied_keys(&self) -> bool {
        !self.deny_list.keys.is_empty()
    }

    pub(super) fn match_key(&self, key: &Key) -> AccessListMatch {
        self.match_lists(|list| !list.keys.is_empty() && list.keys.contains(key))
    }

    fn match_lists(&self, is_on: impl Fn(&AccessList) -> bool) -> AccessListMatch {
        if is_on(&self.deny_list) {
            return AccessListMatch::Denied;
        }
        if is_on(&self.allow_list) { AccessListMatch::Allowed } else { AccessListMatch::Unlisted }
    }
}

impl AccessList {
    fn add_networks(&mut self, networks: NetworkSet) {
        let old = std::mem::take(Arc::make_mut(&mut self.networks));
        self.networks = Arc::new(old.union(networks));
    }
}
