//! `StoredHeaderFilter`: which headers of a request are stored.

use super::envelope::HeaderPairs;
use crate::key::matching_credential;

/// Headers that are not stored:
///
/// - headers of a connection (RFC 9110 section 7.6.1),
/// - headers of this exchange alone: its length, `Expect` (10.1.1) and `Prefer` (RFC 7240),
/// - `Accept-Encoding`: a later reader of the response names its own codings.
///
/// Conditions (`If-Match`) are stored, since they are about the resource, and are evaluated when
/// the request runs. `Range` is stored too; it has no meaning in the methods that are deferred (RFC
/// 9110 section 14.2).
const UNSTORED_HEADERS: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    "prefer",
    "accept-encoding",
];

/// Prefix of lockgate's own headers. They carry information about locks and runs that is valid for
/// one call and for a moment.
const INTERNAL_HEADER_PREFIX: &str = "lockgate-";

/// Headers to store, by their lower-case names.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredHeaderFilter {
    /// Stored although they carry a credential or belong to a connection.
    pub(super) keep_headers: Vec<String>,
    /// Credential headers of the application, besides those of `key::credential_headers`.
    pub(super) credential_headers: Vec<String>,
}

impl StoredHeaderFilter {
    fn is_exempt(&self, name: &str) -> bool {
        self.keep_headers.iter().any(|kept_name| kept_name == name)
    }

    /// Returns the entry of the credential list that covers this name, whether it is kept or not.
    fn matching_credential(&self, name: &str) -> Option<&str> {
        let declared =
            || self.credential_headers.iter().find(|header| *header == name).map(String::as_str);
        matching_credential(name).or_else(declared)
    }

    /// Returns true if a header of this name carries a credential, whether it is kept or not: the
    /// request belongs to a user.
    pub(super) fn is_credential(&self, name: &str) -> bool {
        self.matching_credential(name).is_some()
    }

    /// Returns the entry of the credential list that covers this name, unless the header is kept.
    pub(super) fn withheld_credential(&self, name: &str) -> Option<&str> {
        self.matching_credential(name).filter(|_| !self.is_exempt(name))
    }

    /// Returns true if a header of this name is stored.
    ///
    /// Only the name counts: otherwise a client could remove headers that an outer layer has set.
    /// An origin that stores a request for itself is not a proxy hop, so names listed in
    /// `Connection` have no effect (RFC 9110 section 7.6.1).
    pub(super) fn allows(&self, name: &str) -> bool {
        let is_unstored = UNSTORED_HEADERS.contains(&name) && !self.is_exempt(name);
        !name.starts_with(INTERNAL_HEADER_PREFIX)
            && !is_unstored
            && self.withheld_credential(name).is_none()
    }
}

/// Returns the headers of a request that are stored.
pub(super) fn stored_request_headers(
    headers: &HeaderPairs,
    filter: &StoredHeaderFilter,
) -> HeaderPairs {
    headers.iter().filter(|(name, _)| filter.allows(name)).cloned().collect()
}

/// Returns the size of a request's stored head in bytes: names, values, path and query.
pub(super) fn stored_head_len(
    target: &str,
    headers: &HeaderPairs,
    filter: &StoredHeaderFilter,
) -> usize {
    let stored = headers.iter().filter(|(name, _)| filter.allows(name));
    target.len() + stored.map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

#[cfg(test)]
mod tests;
