//! What a lock, a quota or a line of deferred requests is named by.
//!
//! A request is turned into a [`Key`]: kind, name of the parameter, scope and value, each escaped so
//! that no two different inputs give one key (`a:b` + `c` is not `a` + `b:c`). Values that are long or
//! would be mostly escapes are hashed. Both frameworks hand in the *decoded* value, so the same URL is
//! the same key in each of them.

mod canonical_ip;
mod credential_headers;
mod encoding;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    fmt::Write as _,
    hash::Hasher as _,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use self::encoding::{MAX_READABLE_LEN, is_unescaped, truncated_hash};
pub(crate) use self::{
    canonical_ip::canonical_ip,
    credential_headers::matching_credential,
    encoding::{LogHash, credential_value, digest_parts, escape, hex},
};

/// Number of shards a namespace is divided into. Part of the wire layout (`store::redis::connect::layout`): written
/// into the store when it is first used, and checked at every connect.
pub(crate) const SHARD_COUNT: u16 = 64;

/// Whose tag carries what is about no shard: in a cluster that is somewhere, too.
pub(crate) const COMMON_SHARD: u16 = 0;

/// Most stripes: beyond it, they save nothing over a lock for each key.
const MAX_STRIPES: u32 = 65_536;

/// The name of a lock or of a quota's subject.
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
    /// The key of a path parameter: its name in the route and its decoded value.
    #[must_use]
    pub fn path_param(name: &str, value: &str) -> Self {
        Self::build("p", name, value.as_bytes())
    }

    /// The key of a header field. The name is taken in lower case.
    ///
    /// The value of a credential (`Authorization`, `Cookie`, `X-Api-Key`, `X-Auth-Token` and the
    /// others that `DeferLayer::keep_header` lists) is always hashed: keys can be read in the store. In
    /// `Authorization` and `Proxy-Authorization` it does not count how the scheme is spelt (RFC 9110
    /// section 11.1).
    #[must_use]
    pub fn header(name: &str, value: &[u8]) -> Self {
        let name = name.to_ascii_lowercase();
        let prefix = Self::prefix("h", &name);
        match credential_value(&name, value) {
            Some(credential_value) => Self::with_hashed_value(&prefix, &credential_value),
            None => Self::with_value(&prefix, value),
        }
    }

    /// The key of a client address. IPv4-mapped addresses count as IPv4, and so do those of NAT64 under the well-known
    /// prefix (`64:ff9b::/96`, RFC 6052). IPv6 addresses count by their /64, because a single host usually has that
    /// many to choose from; but one of `64:ff9b:1::/48` (RFC 8215) counts by itself, since a translator of the
    /// network's own has put one IPv4 host there, in a format that only it knows.
    #[must_use]
    pub fn ip(address: IpAddr) -> Self {
        Self::network(address, 64)
    }

    /// As [`ip`](Self::ip), with another size of IPv6 networks, in bits (at most 128). The key says which,
    /// so networks of different sizes are different keys.
    #[must_use]
    pub fn network(address: IpAddr, ipv6_prefix: u8) -> Self {
        // Digits, dots and dashes: nothing to escape. The longest one has 48 of them.
        let mut text = String::with_capacity(48);
        let _ = match canonical_ip(address) {
            // The commonest key of all, and formatting it takes a tenth of refusing a request.
            IpAddr::V4(v4) => {
                let mut before = "a:::";
                for octet in v4.octets() {
                    text.push_str(before);
                    text.push_str(itoa::Buffer::new().format(octet));
                    before = ".";
                }
                Ok(())
            }
            IpAddr::V6(v6) => {
                let whole = canonical_ip::is_local_nat64(v6);
                let prefix = if whole { 128 } else { u32::from(ipv6_prefix.min(128)) };
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                let [a, b, c, d, e, f, g, h] = Ipv6Addr::from(u128::from(v6) & mask).segments();
                let _ = write!(text, "a:::{a:x}-{b:x}-{c:x}-{d:x}");
                match prefix {
                    64 => Ok(()),
                    _ => write!(text, "-{e:x}-{f:x}-{g:x}-{h:x}_{prefix}"),
                }
            }
        };
        Self(text.into())
    }

    /// The key of all clients whose address nobody can tell.
    pub(crate) fn unknown_address() -> Self {
        Self::build("a", "", b"none")
    }

    /// The key of what a layer further out has found out of a client, such as its account. The name says what it is:
    /// user 7 and tenant 7 are two keys.
    #[must_use]
    pub fn extension(name: &str, value: &str) -> Self {
        Self::build("e", name, value.as_bytes())
    }

    /// The key of a route: the pattern as it was registered, such as `/orders/{id}`.
    #[must_use]
    pub fn route(pattern: &str) -> Self {
        Self::build("r", "", pattern.as_bytes())
    }

    /// A key of the application's own choosing.
    #[must_use]
    pub fn custom(value: &str) -> Self {
        Self::build("c", "", value.as_bytes())
    }

    /// The lock of a callback about a job, in that job's shard, where a script that ends it can put the call
    /// into its line; no key of an application is one.
    pub(crate) fn for_webhook(job: &str, shard: u16) -> Self {
        let mut text = Self::build("cb", "", job.as_bytes()).0.to_string();
        text.push('.');
        let mut start = fnv::FnvHasher::default();
        start.write(text.as_bytes());
        let mut digits = itoa::Buffer::new();
        let lands = |n: &u32| {
            let mut hash = fnv::FnvHasher::with_key(start.finish());
            hash.write(itoa::Buffer::new().format(*n).as_bytes());
            Self::shard_of_hash(hash.finish()) == shard
        };
        let n = (0..100_000).find(lands).unwrap_or_default();
        text.push_str(digits.format(n));
        Self(text.into())
    }

    pub(crate) fn is_webhook(&self) -> bool {
        self.0.starts_with("cb:")
    }

    /// What all workers of a queue share among them; no key of an application is it.
    pub(crate) fn for_queue_workers() -> Self {
        Self::build("w", "", b"queue")
    }

    /// Puts the key into a scope, so that `orders` 7 and `users` 7 are two locks. Given twice, both
    /// count.
    #[must_use]
    pub fn scope(&self, scope: &str) -> Self {
        let [kind, name, old, value] = self.parts();
        let joint = if old.is_empty() { "" } else { "+" };
        Self(format!("{kind}:{name}:{old}{joint}{}:{value}", escape(scope.as_bytes())).into())
    }

    /// Puts this in the place of the parameter's or header's name: `/orders/{id}` and
    /// `/payments/{order}` can share a lock.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        let [kind, _, scope, value] = self.parts();
        Self(format!("{kind}:{}:{scope}:{value}", escape(name.as_bytes())).into())
    }

    /// One of `n` keys, which all keys of this kind, name and scope share among them: fewer locks, and
    /// strangers that now and then wait for each other.
    ///
    /// Which one it is follows from the key alone, in every process and version: the first eight bytes of
    /// the SHA-256 of [`as_str`](Self::as_str), as a big-endian number, modulo `n`. Stripes are keys of their
    /// own, and of their own `n`: what locks by stripes does not exclude what locks by the plain key, nor
    /// what has another number of them.
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
    /// If `n` is not within 1 to 65,536.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a digest has 32 bytes")]
    pub fn stripe(&self, n: u32) -> Self {
        assert!(
            (1..=MAX_STRIPES).contains(&n),
            "Key::stripe: {n} stripes; there can be 1 to {MAX_STRIPES}"
        );
        let start = Sha256::digest(self.0.as_bytes());
        let number = start[..8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let [kind, name, scope, _] = self.parts();
        Self(format!("s:{kind}.{name}:{scope}:{n}.{}", number % u64::from(n)).into())
    }

    /// One key of two: both must be the same for the whole to be the same.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::build("t", "", format!("{self}\n{other}").as_bytes())
    }

    /// The key as it stands in the store: ASCII without spaces.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The shard this key's data live in.
    pub(crate) fn shard(&self) -> u16 {
        Self::shard_of_hash(self.fnv_hash())
    }

    /// The FNV-1a hash of the text.
    pub(crate) fn fnv_hash(&self) -> u64 {
        let mut hash = fnv::FnvHasher::default();
        hash.write(self.0.as_bytes());
        hash.finish()
    }

    /// The shard of a key whose [`fnv`](Self::fnv_hash) is known.
    pub(crate) fn shard_of_hash(fnv: u64) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of 64 fits")]
        let shard = (fnv % u64::from(SHARD_COUNT)) as u16;
        shard
    }

    /// What stands in logs for this key: the start of its hash, so that lines can be matched without
    /// showing what the key holds (an address, an account).
    pub(crate) fn log_hash(&self) -> LogHash<'_> {
        LogHash(&self.0)
    }

    /// A key as it came back from the store.
    pub(crate) fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// All but the value: what keys of one layer have in common.
    pub(crate) fn without_value(&self) -> &str {
        let [.., value] = self.parts();
        self.0.strip_suffix(value).unwrap_or(&self.0)
    }

    /// Kind, name, scope and value.
    fn parts(&self) -> [&str; 4] {
        let mut parts = self.0.splitn(4, ':');
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    }

    /// What stands before the value in all keys of a kind and name.
    pub(crate) fn prefix(kind: &str, name: &str) -> String {
        format!("{kind}:{}::", escape(name.as_bytes()))
    }

    /// The key of this value. It is made for every request, so its text is put together on the stack.
    pub(crate) fn with_value(prefix: &str, value: &[u8]) -> Self {
        let mut out = SmallVec::<[u8; 128]>::from_slice(prefix.as_bytes());
        if value.len() <= MAX_READABLE_LEN && value.iter().all(|byte| is_unescaped(*byte)) {
            out.extend_from_slice(value);
        } else {
            out.extend_from_slice(escape(value).as_bytes());
        }
        // ASCII, all of it.
        Self(std::str::from_utf8(&out).unwrap_or_default().into())
    }

    /// The key of a value that is not to be read in it.
    pub(crate) fn with_hashed_value(prefix: &str, value: &[u8]) -> Self {
        Self(format!("{prefix}{}", truncated_hash(value)).into())
    }

    #[expect(clippy::indexing_slicing, reason = "a kind is one of ours, and has a few letters")]
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
