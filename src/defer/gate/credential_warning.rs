//! Warning about requests that are not deferred because of a credential, logged once for each
//! credential.

use std::{collections::BTreeSet, fmt};

use parking_lot::Mutex;

/// Logs that a request was not deferred because of this credential.
///
/// Warns once in a process for each entry of the credential list: a credential that one client
/// sends by chance must not hide another one that all clients send.
pub(super) fn warn_credential_once(lock: &impl fmt::Display, credential: &str) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if WARNED.lock().insert(credential.to_owned()) {
        tracing::warn!(
            credential,
            "not deferred: the request carries a credential, which is not stored; let the layer \
             .carry_as::<T>(..) whose request it is (.carry::<T>() if it names the .owner(..), or users share \
             nothing), or store the field itself by .keep_header(..). This is told once of each credential"
        );
    } else {
        tracing::debug!(%lock, credential, "not deferred: the request carries a credential");
    }
}
