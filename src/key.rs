//! Names of locks, quota subjects and job queues.
//!
//! A [`Key`] has a kind, a parameter name, a scope and a value. Each part is escaped, so that
//! different inputs never give the same key (`a:b` + `c` is not `a` + `b:c`). Values that are long
//! or mostly escapes are hashed. Both frameworks pass the *decoded* value, so a URL has the same
//! key in each of them.

mod address_key;
mod credential_headers;
mod embedded_ipv4;
mod encoding;
mod internal_keys;
mod log_name;
mod operator_name;

#[cfg(test)]
mod tests;

use std::{fmt, hash::Hasher as _, sync::Arc};

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use self::encoding::{MAX_READABLE_LEN, is_unescaped, truncated_hash};
pub(crate) use self::{
    credential_headers::matching_credential,
    embedded_ipv4::canonical_ip,
    encoding::{LogHash, credential_value, digest_parts, escape, hex},
    log_name::LogName,
};
use crate::error::{Error, expect_setting};

/// Number of shards of a namespace. Part of the wire layout: it is written into the store when the
/// namespace is first used, and checked at every connect (`connection_lanes::namespace_layout`).
pub(crate) const SHARD_COUNT: u16 = 64;

/// Shard whose tag the data without a key carry. A cluster needs a slot for them, too.
pub(crate) const COMMON_SHARD: u16 = 0;

/// Maximum number of stripes. More stripes save nothing over a lock for each key.
const MAX_STRIPES: u32 = 65_536;

/// Name of a lock or of a quota's subject.
///
/// ```
/// use lockgate::Key;
///
/// // The key of `LockLayer::by_path_param_as::<u64>("id").scope("orders")` for `/orders/7`.
/// let key = Key::path_param("id", "7").scope("orders");
/// assert_eq!(key.as_str(), "p:id:orders:7");
/// assert_ne!(Key::custom("a:b"), Key::custom("a%3Ab"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// Creates the key of a path parameter from its name in the route and its decoded value.
    #[must_use]
    pub fn path_param(name: &str, value: &str) -> Self {
        Self::build("p", name, value.as_bytes())
    }

    /// Creates the key of a header. The name is converted to lower case.
    ///
    /// The value of a credential header is always hashed, since keys are readable in the store.
    /// Credential headers are `Authorization`, `Cookie`, `X-Api-Key`, `X-Auth-Token` and the others
    /// that `DeferLayer::keep_header` lists. The scheme in `Authorization` and
    /// `Proxy-Authorization` is case-insensitive (RFC 9110 section 11.1).
    #[must_use]
    pub fn header(name: &str, value: &[u8]) -> Self {
        let name = name.to_ascii_lowercase();
        let prefix = Self::prefix("h", &name);
        match credential_value(&name, value) {
            Some(credential_value) => Self::with_hashed_value(&prefix, &credential_value),
            None => Self::with_value(&prefix, value),
        }
    }

    /// Creates the key of a request extension that an outer layer has set, such as the client's
    /// account. The name distinguishes kinds of values: user 7 and tenant 7 are two keys.
    #[must_use]
    pub fn extension(name: &str, value: &str) -> Self {
        Self::build("e", name, value.as_bytes())
    }

    /// Creates the key of a route from its registered pattern, such as `/orders/{id}`.
    #[must_use]
    pub fn route(pattern: &str) -> Self {
        Self::build("r", "", pattern.as_bytes())
    }

    /// Creates a key with a value of the application's choice.
    #[must_use]
    pub fn custom(value: &str) -> Self {
        Self::build("c", "", value.as_bytes())
    }

    /// Adds a scope to the key, so that `orders` 7 and `users` 7 are two locks. A further call adds
    /// another scope.
    #[must_use]
    pub fn scope(&self, scope: &str) -> Self {
        let [kind, name, outer_scope, value] = self.parts();
        let separator = if outer_scope.is_empty() { "" } else { "+" };
        Self(
            format!("{kind}:{name}:{outer_scope}{separator}{}:{value}", escape(scope.as_bytes()))
                .into(),
        )
    }

    /// Replaces the name of the parameter or header, so that `/orders/{id}` and `/payments/{order}`
    /// can share a lock.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        let [kind, _, scope, value] = self.parts();
        Self(format!("{kind}:{}:{scope}:{value}", escape(name.as_bytes())).into())
    }

    /// Maps the key to one of `n` keys, which all keys of this kind, name and scope share. This
    /// needs fewer locks, but unrelated resources sometimes wait for each other.
    ///
    /// The stripe depends on the key alone and is the same in every process and version: the first
    /// eight bytes of the SHA-256 of [`as_str`](Self::as_str), as a big-endian number, modulo `n`.
    /// A stripe is a key of its own: it does not exclude the plain key, nor a stripe of another
    /// `n`.
    ///
    /// ```
    /// use lockgate::Key;
    ///
    /// let key = Key::path_param("id", "7").scope("orders").stripe(16);
    /// assert_eq!(key.as_str(), "s:p.id:orders:16.9");
    /// ```
    ///
    /// # Panics
    ///
    /// If `n` is outside of 1 to 65,536. For a number from a configuration use
    /// [`try_stripe`](Self::try_stripe).
    #[must_use]
    pub fn stripe(&self, n: u32) -> Self {
        expect_setting(self.try_stripe(n))
    }

    /// Like [`stripe`](Self::stripe), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `n` is outside of 1 to 65,536.
    #[expect(clippy::indexing_slicing, reason = "a digest has 32 bytes")]
    pub fn try_stripe(&self, n: u32) -> Result<Self, Error> {
        if !(1..=MAX_STRIPES).contains(&n) {
            return Err(Error::setting(format!(
                "Key::stripe: takes 1 to {MAX_STRIPES} stripes, not {n}"
            )));
        }
        let digest = Sha256::digest(self.0.as_bytes());
        let number = digest[..8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let [kind, name, scope, _] = self.parts();
        Ok(Self(format!("s:{kind}.{name}:{scope}:{n}.{}", number % u64::from(n)).into()))
    }

    /// Combines two keys. Two combinations are equal if both of their parts are.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::build("t", "", format!("{self}\n{other}").as_bytes())
    }

    /// Returns the key as stored: ASCII without spaces.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the shard of this key's data.
    pub(crate) fn shard(&self) -> u16 {
        Self::shard_of_hash(self.fnv_hash())
    }

    /// Returns the FNV-1a hash of the text.
    pub(crate) fn fnv_hash(&self) -> u64 {
        let mut hash = fnv::FnvHasher::default();
        hash.write(self.0.as_bytes());
        hash.finish()
    }

    /// Returns the shard of a key from its [`fnv_hash`](Self::fnv_hash).
    pub(crate) fn shard_of_hash(fnv: u64) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder below 64 fits")]
        let shard = (fnv % u64::from(SHARD_COUNT)) as u16;
        shard
    }

    /// Returns the start of the key's hash for logs. It lets log records be matched without
    /// revealing the key's value (an address, an account).
    pub(crate) fn log_hash(&self) -> LogHash<'_> {
        LogHash(&self.0)
    }

    /// Creates a key from its text in the store.
    pub(crate) fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns all parts but the value: the text that the keys of one layer have in common.
    pub(crate) fn without_value(&self) -> &str {
        let [.., value] = self.parts();
        self.0.strip_suffix(value).unwrap_or(&self.0)
    }

    /// Returns kind, name, scope and value.
    fn parts(&self) -> [&str; 4] {
        let mut parts = self.0.splitn(4, ':');
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    }

    /// Returns the text before the value in all keys of a kind and name.
    pub(crate) fn prefix(kind: &str, name: &str) -> String {
        format!("{kind}:{}::", escape(name.as_bytes()))
    }

    /// Creates the key of a value. Every request needs one, so the text is assembled on the stack.
    pub(crate) fn with_value(prefix: &str, value: &[u8]) -> Self {
        let mut out = SmallVec::<[u8; 128]>::from_slice(prefix.as_bytes());
        if value.len() <= MAX_READABLE_LEN && value.iter().all(|byte| is_unescaped(*byte)) {
            out.extend_from_slice(value);
        } else {
            out.extend_from_slice(escape(value).as_bytes());
        }
        // ASCII only.
        Self(std::str::from_utf8(&out).unwrap_or_default().into())
    }

    /// Creates the key of a value that must not be readable in it.
    pub(crate) fn with_hashed_value(prefix: &str, value: &[u8]) -> Self {
        Self(format!("{prefix}{}", truncated_hash(value)).into())
    }

    #[expect(clippy::indexing_slicing, reason = "kinds are constants of at most 5 bytes")]
    fn build(kind: &str, name: &str, value: &[u8]) -> Self {
        if name.is_empty() {
            let mut prefix = [b':'; 8];
            prefix[..kind.len()].copy_from_slice(kind.as_bytes());
            let prefix = std::str::from_utf8(&prefix[..kind.len() + 3]).unwrap_or_default();
            return Self::with_value(prefix, value);
        }
        Self::with_value(&Self::prefix(kind, name), value)
    }
}

/// Serializes the [operator's name](Key::operator_name).
impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.operator_name())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.log_hash())
    }
}

impl From<&str> for Key {
    fn from(value: &str) -> Self {
        Self::custom(value)
    }
}

impl From<String> for Key {
    fn from(value: String) -> Self {
        Self::custom(&value)
    }
}
