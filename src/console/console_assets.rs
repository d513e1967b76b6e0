//! The page of the console and its files, embedded in the library.

use crate::reply::Reply;

/// Everything comes from this origin, as files, and the page cannot be framed. `connect-src` is for
/// the API, `img-src` for the empty icon.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

macro_rules! asset {
    ($name:literal, $kind:literal) => {
        ($name, $kind, include_str!(concat!("assets/", $name)))
    };
}

/// Name, media type and text of each file.
const ASSETS: [(&str, &str, &str); 14] = [
    asset!("console.css", "text/css; charset=utf-8"),
    asset!("actions.js", "text/javascript; charset=utf-8"),
    asset!("api.js", "text/javascript; charset=utf-8"),
    asset!("audit.js", "text/javascript; charset=utf-8"),
    asset!("check.js", "text/javascript; charset=utf-8"),
    asset!("console.js", "text/javascript; charset=utf-8"),
    asset!("dom.js", "text/javascript; charset=utf-8"),
    asset!("fleet.js", "text/javascript; charset=utf-8"),
    asset!("history.js", "text/javascript; charset=utf-8"),
    asset!("jobs.js", "text/javascript; charset=utf-8"),
    asset!("limits.js", "text/javascript; charset=utf-8"),
    asset!("locks.js", "text/javascript; charset=utf-8"),
    asset!("overview.js", "text/javascript; charset=utf-8"),
    asset!("queues.js", "text/javascript; charset=utf-8"),
];

/// Returns the page.
pub(super) fn page() -> Reply {
    Reply::new(200)
        .header("content-type", "text/html; charset=utf-8")
        .body(include_str!("assets/index.html"))
}

/// Returns a file of the page.
pub(super) fn asset(name: &str) -> Option<Reply> {
    let (_, kind, text) = ASSETS.iter().find(|(known, ..)| *known == name)?;
    Some(Reply::new(200).header("content-type", *kind).body(*text))
}

/// Adds the headers of every response of the console. Files are not cached either, since their
/// names do not change with the version.
pub(super) fn with_security_headers(reply: Reply) -> Reply {
    let has_cache_control = reply.headers.iter().any(|(name, _)| name == "cache-control");
    let reply = reply
        .header("content-security-policy", CONTENT_SECURITY_POLICY)
        .header("x-content-type-options", "nosniff")
        .header("referrer-policy", "no-referrer")
        .header("cross-origin-resource-policy", "same-origin");
    if has_cache_control { reply } else { reply.header("cache-control", "no-store") }
}
