//! Warnings about likely misconfigurations of proxies, each logged once per process.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::gate::gate_request::GateRequest;

/// Warns if a request has a forwarding header but no proxy is trusted: behind a proxy, all clients
/// then count as one. Any client can send such a header, so this is only a warning.
///
/// A deployment behind a proxy shows the header in its first requests, so only the first
/// `MAX_CHECKED` requests are checked.
pub(super) fn warn_ignored_forwarding<V: GateRequest>(view: &V) {
    const MAX_CHECKED: u32 = 10_000;
    static CHECKED: AtomicU32 = AtomicU32::new(0);
    static WARNED: AtomicBool = AtomicBool::new(false);
    if CHECKED.load(Ordering::Relaxed) >= MAX_CHECKED {
        return;
    }
    CHECKED.fetch_add(1, Ordering::Relaxed);
    let names = ["x-forwarded-for", "forwarded"];
    let Some(header) = names.into_iter().find(|name| !view.header_values(name).is_empty()) else {
        return;
    };
    CHECKED.store(MAX_CHECKED, Ordering::Relaxed);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            header,
            "forwarding header found, but no proxy is trusted, so by_ip() ignores it: behind a \
             proxy of yours all clients count as one; name the trusted proxies by \
             by_client(ClientAddress::behind_proxies([..]))"
        );
    }
}

/// Warns if a trusted proxy sent no forwarding header. A proxy that writes another header would go
/// unnoticed otherwise.
pub(super) fn warn_missing_forwarding() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a trusted proxy sent no client address; name the header that it writes by \
             ClientAddress::behind_proxies([..]).forwarded_header() or .header(name), and set \
             .on_missing(..) for its own requests, such as health checks"
        );
    }
}
