//! Lookup of a job at the status resource.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{
    checker::deferred::ObservedStatus,
    http_client::{TestResponse, request},
    wait::TEST_TIMEOUT,
};

/// Pause before a request is repeated after a 503: the node's connections may just have been cut.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

async fn get_with_retry(node_addr: SocketAddr, target: &str) -> Option<TestResponse> {
    let started = Instant::now();
    loop {
        let answer = request(node_addr, "GET", target).try_send().await.ok()?;
        if answer.status != 503 || started.elapsed() > TEST_TIMEOUT {
            return Some(answer);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Returns `None` without a response.
pub(super) async fn fetch_status(node_addr: SocketAddr, id: &str) -> Option<ObservedStatus> {
    let answer = get_with_retry(node_addr, &format!("/deferred/{id}")).await?;
    if answer.status == 404 {
        return Some(ObservedStatus::default());
    }
    let document = answer.expect_status(200).json();
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let (state, reason) = (text("state"), text("reason"));
    let response = if state == "done" {
        let stored = get_with_retry(node_addr, &format!("/deferred/{id}/response")).await?;
        Some((stored.status.as_u16(), stored.text()))
    } else {
        None
    };
    Some(ObservedStatus { state, reason, response })
}
