//! A user through all three parts: stored by the layer, restored by the worker, and the only one
//! who sees the job.
//!
//! One test: a worker that lacks the user is noticed only while the process has a single store.

use std::future::pending;

use actix_web::{
    App, Error, HttpMessage as _,
    body::{BoxBody, MessageBody, to_bytes},
    dev::{Service, ServiceRequest, ServiceResponse},
    http::header::AUTHORIZATION,
    middleware::{Next, from_fn},
    test::{TestRequest, init_service},
    web::{self, ServiceConfig},
};
use lockgate_actix_web::{
    DeferLayer, DeferWorker, ExtensionSnapshot, Key, LockLayer, RequestUser, deferred_routes,
    testing::TestKit,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct User {
    id: u64,
}

impl ExtensionSnapshot for User {
    const NAME: &'static str = "user";
}

impl RequestUser for User {
    fn owner(&self) -> String {
        format!("user:{}", self.id)
    }
}

async fn refund(user: web::ReqData<User>) -> String {
    format!("refunded for {}", user.id)
}

/// The number in `Authorization` is the user.
async fn authenticate(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let token = request.headers().get(AUTHORIZATION).and_then(|token| token.to_str().ok());
    let id = token.and_then(|token| token.parse().ok());
    if let Some(id) = id {
        request.extensions_mut().insert(User { id });
    }
    next.call(request).await
}

/// The routes inside the authentication.
fn order_routes(config: &mut ServiceConfig) {
    let refund = web::resource("/orders/{id}/refund")
        .route(web::post().to(refund))
        .wrap(LockLayer::by_path_param_as::<u64>("id"))
        .wrap(DeferLayer::new().for_user::<User>());
    config.service(refund);
}

async fn send<B: MessageBody + 'static>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = Error>,
    request: TestRequest,
    user: Option<&str>,
) -> ServiceResponse<BoxBody> {
    let request = match user {
        Some(user) => request.insert_header((AUTHORIZATION, user)),
        None => request,
    };
    app.call(request.to_request()).await.expect("an answer").map_into_boxed_body()
}

#[actix_web::test]
async fn user_is_stored_restored_and_the_only_one_who_sees_the_job() {
    let kit = TestKit::new();
    // Its routes are built in a thread of their own, and it is checked when they are.
    let incomplete = DeferWorker::new(kit.store(), order_routes);
    let ended = actix_web::rt::spawn(incomplete.run(pending())).await;
    assert!(ended.expect_err("it restores no user").is_panic());

    let app = App::new()
        .configure(order_routes)
        .service(deferred_routes("/deferred").for_user::<User>())
        .wrap(from_fn(authenticate))
        .app_data(web::Data::new(kit.store().clone()));
    let app = init_service(app).await;
    let worker = DeferWorker::new(kit.store(), order_routes).for_user::<User>();
    let mut worker = kit.defer_worker(worker).await.expect("it restores the user");
    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let accepted = send(&app, TestRequest::post().uri("/orders/7/refund"), Some("1")).await;
    assert_eq!(accepted.status().as_u16(), 202);
    let location = accepted.headers().get("location").expect("one").to_str().expect("a path");
    drop(guard);
    let runs = worker.run_due().await.expect("it is there");
    assert_eq!(runs.first().and_then(|run| run.status), Some(200));

    let response = format!("{location}/response");
    for user in [None, Some("2")] {
        for target in [location, response.as_str()] {
            let seen = send(&app, TestRequest::get().uri(target), user).await;
            assert_eq!(seen.status().as_u16(), 404, "{user:?}");
        }
    }
    let own = send(&app, TestRequest::get().uri(&response), Some("1")).await;
    assert_eq!(own.status().as_u16(), 200);
    let body = to_bytes(own.into_body()).await.expect("short");
    assert_eq!(&body[..], b"refunded for 1");
}
