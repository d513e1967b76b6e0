//! Direct runs with an idempotency key: the fingerprint of their request.

use actix_http::Payload;
use actix_web::{
    App,
    http::StatusCode,
    test::{TestRequest, call_service, init_service, read_body},
    web::{self, Bytes, Data},
};
use futures_util::stream;
use lockgate_actix_web::{DeferLayer, LockLayer, Store};

/// Over HTTP/2 each request has a payload, also without a body.
#[actix_web::test]
async fn empty_payload_has_the_fingerprint_of_an_empty_body() {
    let order = |path| {
        web::resource(path)
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().idempotent_direct())
    };
    let app = App::new()
        .service(order("/unread/{id}").post(async || ""))
        .service(order("/read/{id}").post(async |body: Bytes| body))
        .app_data(Data::new(Store::memory()));
    let app = init_service(app).await;
    let post = async |uri: &str, body: &[&'static str]| {
        let request = TestRequest::post().uri(uri).insert_header(("idempotency-key", "k"));
        let chunks: Vec<_> =
            body.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        let payload: Payload = Payload::Stream { payload: Box::pin(stream::iter(chunks)) };
        let answer = call_service(&app, request.to_request().replace_payload(payload).0).await;
        (answer.status(), read_body(answer).await)
    };
    for (path, body) in [("/unread/7", &[][..]), ("/read/7", &["a", "b"][..])] {
        let (status, echo) = post(&format!("{path}?amount=1"), body).await;
        assert_eq!((status, &*echo), (StatusCode::OK, body.concat().as_bytes()), "{path}");
        let (status, _) = post(&format!("{path}?amount=1"), body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{path}: same request");
        let (status, _) = post(&format!("{path}?amount=2"), body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: another request");
    }
    let (status, _) = post("/read/7?amount=1", &["a", "c"]).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "another body");
}
