//! The check that an action was sent by the console's own page.

use super::guard_request::GuardRequest;

/// Returns true if the browser says that a page of this origin has sent the request.
///
/// `Sec-Fetch-Site` decides if it was sent: pages cannot set it. Older browsers send `Origin` with
/// every POST; its host has to be the one that was asked. A client that sends neither is no browser
/// with the console's page, and is refused: operators' programs use the library or the command
/// line.
pub(super) fn is_same_origin(request: &GuardRequest) -> bool {
    if request.has_header("sec-fetch-site") {
        return request.header("sec-fetch-site") == Some(b"same-origin");
    }
    let origin = request.header("origin").and_then(|origin| str::from_utf8(origin).ok());
    let origin_host = origin.and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    match (origin_host, &request.host) {
        (Some(origin_host), Some(host)) => origin_host.eq_ignore_ascii_case(host),
        _ => false,
    }
}
