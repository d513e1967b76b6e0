//! What looks like a mistake about proxies, told once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::gate::view::View;

/// Logged once in a process: behind a proxy that nobody has told us of, all its clients are one. On the
/// other hand anybody can send such a field, so it is a warning and no more.
///
/// Who is behind a proxy sees it soon: after the first requests nobody looks any more.
pub(super) fn warn_of_proxies<V: View>(view: &V) {
    const LOOKS: u32 = 10_000;
    static LOOKED: AtomicU32 = AtomicU32::new(0);
    static WARNED: AtomicBool = AtomicBool::new(false);
    if LOOKED.load(Ordering::Relaxed) >= LOOKS {
        return;
    }
    LOOKED.fetch_add(1, Ordering::Relaxed);
    let names = ["x-forwarded-for", "forwarded"];
    let Some(field) = names.into_iter().find(|name| !view.header(name).is_empty()) else { return };
    LOOKED.store(LOOKS, Ordering::Relaxed);
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
pub(super) fn warn_of_silence() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a trusted proxy has not told whom it speaks for; name the field that it writes: \
             ClientAddress::behind([..]).forwarded() or .header(name), and say with .absent(..) what \
             becomes of requests of its own, such as health checks"
        );
    }
}
