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
            "not deferred: the request carries a credential, which is not stored; store the user \
             by .for_user::<U>() or .carry_identity::<T>(..) (or .carry_extension::<T>() if the \
             layer names the .owner(..)), or store the header itself by .keep_header(..). Logged \
             once for each header"
        );
    } else {
        tracing::debug!(%lock, credential, "not deferred: the request carries a credential");
    }
}
