//! A look at the status resource.

use std::net::SocketAddr;

use lockgate::testing::history::deferred::Seen;

use crate::http::request;

/// `None`: no answer.
pub(super) async fn look(at: SocketAddr, id: &str) -> Option<Seen> {
    let answer = request(at, "GET", &format!("/deferred/{id}")).try_send().await.ok()?;
    if answer.status == 404 {
        return Some(Seen::default());
    }
    let document = answer.expect(200).json();
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let (state, reason) = (text("state"), text("reason"));
    let response = if state == "done" {
        let target = format!("/deferred/{id}/response");
        let stored = request(at, "GET", &target).try_send().await.ok()?;
        Some((stored.status.as_u16(), stored.text()))
    } else {
        None
    };
    Some(Seen { state, reason, response })
}
