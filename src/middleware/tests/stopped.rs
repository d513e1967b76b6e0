//! An answer that is broken off: its body ends before its lock does.

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

use super::{Boxed, SECOND, answer, dribble, gate, is_free, post};
use crate::{
    lock::{HoldUntil, OnLoss},
    middleware::{GateLayer, PlainHttp},
    store::Store,
};

/// What a handler makes of its request while it answers.
struct Streams {
    request: Boxed,
    store: Store,
    /// Whether the lock was free when this ended.
    free: Arc<Mutex<Option<bool>>>,
}

impl Body for Streams {
    type Data = Bytes;
    type Error = <Boxed as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.request).poll_frame(cx) {
            // It makes the best of it, and goes on.
            Poll::Ready(Some(Err(_))) => Poll::Pending,
            other => other,
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        *self.free.lock() = is_free(&self.store).now_or_never();
    }
}

#[tokio::test(start_paused = true)]
async fn what_streams_has_ended_when_its_lock_is_given_back() {
    let (store, free) = (Store::memory(), Arc::new(Mutex::new(None)));
    let (of_body, seen) = (store.clone(), Arc::clone(&free));
    let handler = service_fn(move |request: Request<Boxed>| {
        let (store, free) = (of_body.clone(), Arc::clone(&seen));
        let body = Streams { request: request.into_body(), store, free };
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let gate = gate(&store).hold_until(HoldUntil::BodyEnd);
    let service = GateLayer::<_, PlainHttp>::new(gate).layer(handler);
    let answer = service.oneshot(post(dribble(9, SECOND))).await.expect("it does not fail");
    assert!(answer.into_body().collect().await.is_err(), "its client is too slow");
    assert_eq!(*free.lock(), Some(false), "another had the lock beside it");
    assert!(store.shutdown(SECOND).await && is_free(&store).await);
}

/// Its last step takes longer than the lock may be held, and nobody comes between that and the end.
#[tokio::test(start_paused = true)]
async fn a_body_whose_lock_had_ended_before_it_did_is_not_whole() {
    for policy in [OnLoss::Cancel, OnLoss::Replace] {
        let store = Store::memory();
        let gate = gate(&store).max_hold(SECOND).hold_until(HoldUntil::BodyEnd).on_loss(policy);
        let body = || async {
            StreamBody::new(stream::iter([1, 2]).map(|_| {
                let _ = tokio::time::advance(SECOND).now_or_never();
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"part")))
            }))
        };
        let whole = answer(gate, body).await.into_body().collect().await;
        assert_eq!(whole.is_err(), policy == OnLoss::Cancel, "{policy:?}");
        assert!(is_free(&store).await);
    }
}
