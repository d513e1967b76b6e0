//! What stands in the place of a lock to show what a lock's lines are worth: two round trips, and nothing asked.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use redis::aio::MultiplexedConnection;
use tokio::sync::{mpsc, oneshot};

/// Asks, runs, asks, answers, on one multiplexed connection.
pub(super) async fn alone(
    State(mut connection): State<MultiplexedConnection>,
    request: Request,
    next: Next,
) -> Response {
    let before = redis::cmd("PING").exec_async(&mut connection).await;
    let response = next.run(request).await;
    let after = redis::cmd("PING").exec_async(&mut connection).await;
    if before.and(after).is_ok() { response } else { away() }
}

/// The same, where one `PING` is sent for all that wait for one, while the next wait for their own.
pub(super) async fn shared(State(pings): State<Shared>, request: Request, next: Next) -> Response {
    let before = pings.ping().await;
    let response = next.run(request).await;
    let after = pings.ping().await;
    if before.and(after).is_some() { response } else { away() }
}

fn away() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

/// One task that asks for everybody.
#[derive(Clone)]
pub(super) struct Shared(mpsc::UnboundedSender<oneshot::Sender<()>>);

impl Shared {
    pub(super) fn over(mut connection: MultiplexedConnection) -> Self {
        let (sender, mut waiting) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        tokio::spawn(async move {
            let mut together = Vec::new();
            while waiting.recv_many(&mut together, usize::MAX).await > 0 {
                let asked = redis::cmd("PING").exec_async(&mut connection).await;
                // Those who are not answered find their sender dropped.
                let answered = together.drain(..).filter(|_| asked.is_ok());
                answered.for_each(|caller| caller.send(()).unwrap_or_default());
            }
        });
        Self(sender)
    }

    async fn ping(&self) -> Option<()> {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).ok()?;
        answered.await.ok()
    }
}
