//! Interrupted responses: the body ends before its lock.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer as _;

use super::{
    BoxedTestBody, SECOND, call_under_lock, is_lock_free, lock_gate, post_request, slow_body,
};
use crate::{
    lock::{HoldUntil, OnLoss},
    middleware::{GateLayer, PlainHttp},
    store::Store,
};

/// Response body that echoes the request body.
struct EchoBody {
    request_body: BoxedTestBody,
    store: Store,
    /// Whether the lock was free when the body was dropped.
    was_lock_free: Arc<Mutex<Option<bool>>>,
}

impl Body for EchoBody {
    type Data = Bytes;
    type Error = <BoxedTestBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.request_body).poll_frame(cx) {
            // Ignores the error and stays pending.
            Poll::Ready(Some(Err(_))) => Poll::Pending,
            other => other,
        }
    }
}

impl Drop for EchoBody {
    fn drop(&mut self) {
        *self.was_lock_free.lock() = is_lock_free(&self.store).now_or_never();
    }
}

#[tokio::test(start_paused = true)]
async fn streaming_body_is_dropped_before_the_lock_is_released() {
    let (store, free) = (Store::memory(), Arc::new(Mutex::new(None)));
    let (body_store, seen) = (store.clone(), Arc::clone(&free));
    let handler = service_fn(move |request: Request<BoxedTestBody>| {
        let (store, free) = (body_store.clone(), Arc::clone(&seen));
        let body = EchoBody { request_body: request.into_body(), store, was_lock_free: free };
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let gate = lock_gate(&store).hold_until(HoldUntil::BodyEnd);
    let service = GateLayer::<_, PlainHttp>::new(gate).layer(handler);
    let answer =
        service.oneshot(post_request(slow_body(9, SECOND))).await.expect("it does not fail");
    assert!(answer.into_body().collect().await.is_err(), "its client is too slow");
    assert_eq!(*free.lock(), Some(false), "another had the lock beside it");
    assert!(store.shutdown(SECOND).await && is_lock_free(&store).await);
}

/// The last poll takes longer than `max_hold`, and no other poll happens before the end.
#[tokio::test(start_paused = true)]
async fn body_after_lock_loss_is_cut_under_cancel() {
    for policy in [OnLoss::Cancel, OnLoss::Replace] {
        let store = Store::memory();
        let gate =
            lock_gate(&store).max_hold(SECOND).hold_until(HoldUntil::BodyEnd).on_loss(policy);
        let body = || async {
            StreamBody::new(stream::iter([1, 2]).map(|_| {
                let _ = tokio::time::advance(SECOND).now_or_never();
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"part")))
            }))
        };
        let whole = call_under_lock(gate, body).await.into_body().collect().await;
        assert_eq!(whole.is_err(), policy == OnLoss::Cancel, "{policy:?}");
        assert!(is_lock_free(&store).await);
    }
}
