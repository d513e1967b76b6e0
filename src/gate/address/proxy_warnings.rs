//! What looks like a mistake about proxies, told once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::gate::gate_request::GateRequest;

/// Logged once in a process: behind a proxy that nobody has told us of, all its clients are one. On the
/// other hand anybody can send such a field, so it is a warning and no more.
///
/// Who is behind a proxy sees it soon: after the first requests nobody looks any more.
pub(super) fn warn_ignored_forwarding<V: GateRequest>(view: &V) {
    const MAX_CHECKED: u32 = 10_000;
    static CHECKED: AtomicU32 = AtomicU32::new(0);
    static WARNED: AtomicBool = AtomicBool::new(false);
    if CHECKED.load(Ordering::Relaxed) >= MAX_CHECKED {
        return;
    }
    CHECKED.fetch_add(1, Ordering::Relaxed);
    let names = ["x-forwarded-for", "forwarded"];
    let Some(field) = names.into_iter().find(|name| !view.header_values(name).is_empty()) else {
        return;
    };
    CHECKED.store(MAX_CHECKED, Ordering::Relaxed);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            field,
            "a request names the client it was forwarded for, and by_ip() believes no such field: if it \
             came through a proxy of yours, all its clients count as one; tell which proxies to believe \
             with by_client(ClientAddress::behind([..]))"
        );
    }
}

/// Logged once in a process: a proxy that writes another field is easily not noticed otherwise.
pub(super) fn warn_missing_forwarding() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a trusted proxy has not told whom it speaks for; name the field that it writes: \
             ClientAddress::behind([..]).forwarded() or .header(name), and say with .absent(..) what \
             becomes of requests of its own, such as health checks"
        );
    }
}
