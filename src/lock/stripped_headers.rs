//! Delegation and replay headers that a layer removes from a request and keeps for inner layers.

use std::sync::Arc;

use super::delegation_header::DELEGATION_HEADER;
use crate::gate::{GateRequest, REPLAY_HEADER};

/// Most delegation headers of one request that are read.
const MAX_DELEGATION_HEADERS: usize = 32;

/// Headers that were removed from a request, kept for inner layers.
#[derive(Clone)]
pub(super) struct StrippedHeaders {
    /// Values of the delegation headers.
    pub(super) delegations: Arc<[String]>,
    /// Value of the replay header.
    replay: Option<Arc<str>>,
    /// True if the sender is trusted because of a delegation; the handler must check the replay
    /// header.
    is_trusted: bool,
}

/// Removes the delegation and replay headers from a request and keeps them for the layers.
///
/// A handler that forwards its headers would forward these too, and no inner service must take a
/// forged one for a trusted one.
pub(super) fn strip_headers<V: GateRequest>(view: &mut V) {
    // Usually there is neither: one lookup for both.
    if !view.has_any_header(&[DELEGATION_HEADER, REPLAY_HEADER]) {
        return;
    }
    // Headers that an outer layer has received and verified remain in force.
    let earlier = view.extension::<StrippedHeaders>();
    if earlier.as_ref().is_some_and(|earlier| earlier.is_trusted)
        && view.header_values(DELEGATION_HEADER).is_empty()
    {
        return;
    }
    let to_text = |value: &&[u8]| str::from_utf8(value).ok().map(str::to_owned);
    let delegations = view
        .header_values(DELEGATION_HEADER)
        .iter()
        .take(MAX_DELEGATION_HEADERS)
        .filter_map(to_text)
        .collect();
    let replay = view.header_values(REPLAY_HEADER).iter().find_map(to_text).map(Arc::from);
    view.set_header(DELEGATION_HEADER, None);
    view.set_header(REPLAY_HEADER, None);
    view.insert_extension(StrippedHeaders { delegations, replay, is_trusted: false });
}

/// Returns true if the request claims to be a run and its sender is not yet trusted.
pub(super) fn has_untrusted_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<StrippedHeaders>()
        .is_some_and(|stripped| stripped.replay.is_some() && !stripped.is_trusted)
}

/// Returns true if the request claims to be a run and its sender is trusted.
pub(super) fn has_trusted_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<StrippedHeaders>()
        .is_some_and(|stripped| stripped.replay.is_some() && stripped.is_trusted)
}

/// Restores the replay header, which the handler has to check; its sender is trusted because of a
/// delegation.
pub(super) fn restore_replay_header<V: GateRequest>(view: &mut V) {
    if let Some(mut stripped) = view.remove_extension::<StrippedHeaders>() {
        if let Some(replay) = &stripped.replay {
            view.set_header(REPLAY_HEADER, Some(replay));
        }
        stripped.is_trusted = true;
        view.insert_extension(stripped);
    }
}
