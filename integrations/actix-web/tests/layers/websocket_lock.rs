//! Upgraded connections under a lock.

use std::{future::poll_fn, pin::pin, time::Duration};

use actix_web::{
    App, HttpResponse,
    body::MessageBody as _,
    dev::Service as _,
    http::StatusCode,
    rt::time::timeout,
    test::{TestRequest, init_service},
    web::{self, Data, Payload},
};
use lockgate_actix_web::{HoldUntil, LockLayer, Store};

use crate::{order_key, stalled_payload};

/// The two directions of the socket are the payload and the body, and both may be silent.
#[actix_web::test]
async fn websocket_holds_its_lock_until_it_ends() {
    let store = Store::memory();
    let echo = async |payload: Payload| {
        HttpResponse::SwitchingProtocols().upgrade("websocket").streaming(payload)
    };
    let lock = LockLayer::by_path_param("id")
        .all_methods()
        .hold_until(HoldUntil::BodyEnd)
        .body_read_timeout(Duration::from_millis(10));
    let app = App::new()
        .service(web::resource("/orders/{id}").get(echo).wrap(lock))
        .app_data(Data::new(store.clone()));
    let app = init_service(app).await;

    let get = TestRequest::get().uri("/orders/7").to_request().replace_payload(stalled_payload()).0;
    let answer = app.call(get).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    {
        let mut socket = pin!(answer.into_body());
        let chunk = poll_fn(|cx| socket.as_mut().poll_next(cx));
        let chunk = timeout(Duration::from_millis(200), chunk).await;
        assert!(chunk.is_err(), "silent, and open: {:?}", chunk.map(|chunk| chunk.is_some()));
        assert!(store.lock(order_key()).acquire().await.is_err(), "the socket holds its lock");
    }
    let lock = store.lock(order_key()).wait(Duration::from_secs(5)).acquire().await;
    assert!(lock.is_ok(), "{lock:?}");
}
