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

/// Pause before a node is asked again that could not ask the store: its connections may just have been cut.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

async fn get_with_retry(at: SocketAddr, target: &str) -> Option<TestResponse> {
    let began = Instant::now();
    loop {
        let answer = request(at, "GET", target).try_send().await.ok()?;
        if answer.status != 503 || began.elapsed() > TEST_TIMEOUT {
            return Some(answer);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// `None`: no answer.
pub(super) async fn fetch_status(at: SocketAddr, id: &str) -> Option<ObservedStatus> {
    let answer = get_with_retry(at, &format!("/deferred/{id}")).await?;
    if answer.status == 404 {
        return Some(ObservedStatus::default());
    }
    let document = answer.expect_status(200).json();
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let (state, reason) = (text("state"), text("reason"));
    let response = if state == "done" {
        let stored = get_with_retry(at, &format!("/deferred/{id}/response")).await?;
        Some((stored.status.as_u16(), stored.text()))
    } else {
        None
    };
    Some(ObservedStatus { state, reason, response })
}
