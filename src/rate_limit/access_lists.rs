//! Allow list and deny list of a layer.

use std::{collections::HashSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::access_list_document::AccessListDocument;
use crate::{
    error::{Error, expect_setting},
    gate::{ClientAddress, GateRequest, KeyError, NetworkSet},
    key::Key,
};

/// Clients admitted without counting, and clients refused, by address or by key.
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
/// A denied client is answered with 403 and without `Retry-After`, since waiting does not help and
/// 429 would promise that it does. A client on both lists is denied. No listed client is charged,
/// and the store is not asked. Inside a lock, the lists apply to runs of deferred requests as well,
/// which have not reached the layer before: a 403 makes them dead letters (`auth`).
///
/// The address is the one in the layer's key (`by_ip`, `by_client`; the first one of several
/// policies), before it is reduced to its network. Without such a key it is the peer address, or
/// that of [`client_address`](Self::client_address). The keys are those that the layer reads from
/// the request, such as [`Key::header`] with `by_header`.
///
/// # Configuration
///
/// With serde, the lists have the optional fields `allow` and `deny`, of networks, and `allow_keys`
/// and `deny_keys`, of keys as they are stored ([`Key::as_str`]). Unknown fields and invalid
/// entries are errors. [`client_address`](Self::client_address) is a setting of the code only.
///
/// ```
/// use lockgate::AccessLists;
///
/// let json = r#"{ "allow": ["10.0.0.0/8"], "deny_keys": ["e:user::7"] }"#;
/// let lists: AccessLists = serde_json::from_str(json)?;
/// # let _ = lists;
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(into = "AccessListDocument", try_from = "AccessListDocument")]
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

/// List that a request is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessListMatch {
    Unlisted,
    Allowed,
    Denied,
}

impl AccessLists {
    /// Creates empty lists.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds addresses and networks (CIDR) to the allow list.
    ///
    /// # Panics
    ///
    /// If one of them is neither. For networks from a configuration use
    /// [`try_allow`](Self::try_allow).
    #[must_use]
    pub fn allow<S: AsRef<str>>(self, networks: impl IntoIterator<Item = S>) -> Self {
        expect_setting(self.try_allow(networks))
    }

    /// Like [`allow`](Self::allow), for networks from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if one of them is neither an address nor a network.
    pub fn try_allow<S: AsRef<str>>(
        mut self,
        networks: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        self.allow_list.add_networks(NetworkSet::try_parse("AccessLists::allow", networks)?);
        Ok(self)
    }

    /// Adds addresses and networks (CIDR) to the deny list.
    ///
    /// # Panics
    ///
    /// If one of them is neither. For networks from a configuration use
    /// [`try_deny`](Self::try_deny).
    #[must_use]
    pub fn deny<S: AsRef<str>>(self, networks: impl IntoIterator<Item = S>) -> Self {
        expect_setting(self.try_deny(networks))
    }

    /// Like [`deny`](Self::deny), for networks from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if one of them is neither an address nor a network.
    pub fn try_deny<S: AsRef<str>>(
        mut self,
        networks: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        self.deny_list.add_networks(NetworkSet::try_parse("AccessLists::deny", networks)?);
        Ok(self)
    }

    /// Adds a key to the allow list.
    #[must_use]
    pub fn allow_key(mut self, key: Key) -> Self {
        Arc::make_mut(&mut self.allow_list.keys).insert(key);
        self
    }

    /// Adds a key to the deny list.
    #[must_use]
    pub fn deny_key(mut self, key: Key) -> Self {
        Arc::make_mut(&mut self.deny_list.keys).insert(key);
        self
    }

    /// Sets the address that is compared with the networks. Default: the address in the layer's
    /// key, or else the peer address. A request without an address is refused, or is on neither
    /// list, by the setting [`ClientAddress::on_missing`].
    #[must_use]
    pub fn client_address(mut self, address: ClientAddress) -> Self {
        self.client_address = Some(Arc::new(address));
        self
    }

    /// Matches the request's address; `key_address` is the address in the layer's key.
    pub(super) fn match_address<V: GateRequest>(
        &self,
        view: &V,
        key_address: Option<&ClientAddress>,
    ) -> Result<AccessListMatch, KeyError> {
        if self.allow_list.networks.is_empty() && self.deny_list.networks.is_empty() {
            return Ok(AccessListMatch::Unlisted);
        }
        let address = match self.client_address.as_deref().or(key_address) {
            Some(client) => client.address_for_lists(view)?,
            None => ClientAddress::peer().address_for_lists(view)?,
        };
        let is_listed =
            |list: &AccessList| address.is_some_and(|address| list.networks.contains(address));
        Ok(self.match_lists(is_listed))
    }

    pub(super) fn has_denied_keys(&self) -> bool {
        !self.deny_list.keys.is_empty()
    }

    pub(super) fn match_key(&self, key: &Key) -> AccessListMatch {
        self.match_lists(|list| !list.keys.is_empty() && list.keys.contains(key))
    }

    fn match_lists(&self, is_listed: impl Fn(&AccessList) -> bool) -> AccessListMatch {
        if is_listed(&self.deny_list) {
            return AccessListMatch::Denied;
        }
        if is_listed(&self.allow_list) {
            AccessListMatch::Allowed
        } else {
            AccessListMatch::Unlisted
        }
    }
}

impl From<AccessLists> for AccessListDocument {
    fn from(AccessLists { allow_list, deny_list, .. }: AccessLists) -> Self {
        Self {
            allow: allow_list.networks.blocks(),
            allow_keys: allow_list.stored_keys(),
            deny: deny_list.networks.blocks(),
            deny_keys: deny_list.stored_keys(),
        }
    }
}

impl AccessList {
    /// Returns the keys as stored, in the order of their texts.
    fn stored_keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.keys.iter().map(|key| key.as_str().to_owned()).collect();
        keys.sort_unstable();
        keys
    }

    fn add_networks(&mut self, networks: NetworkSet) {
        let previous = std::mem::take(Arc::make_mut(&mut self.networks));
        self.networks = Arc::new(previous.union(networks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn invalid_networks_are_config_errors() {
        let error = AccessLists::new().try_allow(["10.0.0.0/8", "here"]).expect_err("a network");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().starts_with("AccessLists::allow: `here`"), "{error}");
        let error = AccessLists::new().try_deny(["::/129"]).expect_err("a network");
        assert!(error.to_string().starts_with("AccessLists::deny: `::/129`"), "{error}");
        assert!(AccessLists::new().try_deny(["::/128"]).is_ok());
    }
}
