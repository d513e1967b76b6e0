//! The key of a request: the same in each placement of the layer, and of the value that the handler
//! sees.

use actix_web::{
    App, HttpRequest, HttpResponse,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
    http::StatusCode,
    middleware::{Next, from_fn},
    test::{TestRequest, call_and_read_body, call_service, init_service},
    web,
};
use lockgate_actix_web::{CurrentLock, Key, LockLayer, Store};

async fn current_lock_key(CurrentLock(lock): CurrentLock) -> String {
    lock.key().to_string()
}

async fn assert_unlocked(lock: Option<CurrentLock>) -> HttpResponse {
    assert!(lock.is_none(), "no lock was expected");
    HttpResponse::Ok().finish()
}

fn id_lock_layer() -> LockLayer {
    LockLayer::by_path_param("id")
}

fn store_data() -> web::Data<Store> {
    web::Data::new(Store::memory())
}

async fn post_status<B: MessageBody>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = actix_web::Error>,
    path: &str,
) -> StatusCode {
    call_service(app, TestRequest::post().uri(path).to_request()).await.status()
}

/// Body of the response, which is the key of the lock that the handler ran under.
macro_rules! key_of {
    ($app:expr, $path:expr) => {{
        let request = TestRequest::post().uri($path).to_request();
        let body =
            call_and_read_body(&init_service($app.app_data(store_data())).await, request).await;
        String::from_utf8(body.to_vec()).expect("keys are ASCII")
    }};
}

/// The layer cannot remove a header while a middleware keeps a clone of the request. The response
/// is 500, and nothing panics.
#[actix_web::test]
async fn request_kept_by_a_middleware_is_500_not_a_panic() {
    let retaining =
        from_fn(async |retained: HttpRequest, request: ServiceRequest, next: Next<_>| {
            let answer = next.call(request).await;
            drop(retained);
            answer
        });
    let order =
        web::resource("/orders/{id}").post(current_lock_key).wrap(id_lock_layer()).wrap(retaining);
    let app = init_service(App::new().service(order).app_data(store_data())).await;
    assert_eq!(post_status(&app, "/orders/7").await, StatusCode::OK);
    for name in ["lockgate-held", "lockgate-replay"] {
        let request = TestRequest::post().uri("/orders/7").insert_header((name, "x"));
        let answer = call_service(&app, request.to_request()).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "{name}");
    }
    assert_eq!(post_status(&app, "/orders/7").await, StatusCode::OK, "no state is left behind");
}

#[actix_web::test]
async fn route_resource_scope_and_app_give_the_same_key() {
    let path = "/shops/a%2Fb/orders/x%20y/pay";
    let pattern = "/shops/{shop}/orders/{id}/pay";
    let inner = "/orders/{id}/pay";

    let expected = Key::path_param("id", "x y").to_string();
    let route = App::new().route(pattern, web::post().to(current_lock_key).wrap(id_lock_layer()));
    assert_eq!(key_of!(route, path), expected);
    let resource =
        App::new().service(web::resource(pattern).post(current_lock_key).wrap(id_lock_layer()));
    assert_eq!(key_of!(resource, path), expected);
    let scope = web::scope("/shops/{shop}").service(web::resource(inner).post(current_lock_key));
    assert_eq!(key_of!(App::new().service(scope.wrap(id_lock_layer())), path), expected);
    let scope = web::scope("/shops/{shop}").service(web::resource(inner).post(current_lock_key));
    assert_eq!(key_of!(App::new().service(scope).wrap(id_lock_layer()), path), expected);

    // A parameter of the scope itself.
    let shop = || LockLayer::by_path_param("shop");
    let expected = Key::path_param("shop", "a/b").to_string();
    let scope = web::scope("/shops/{shop}").service(web::resource(inner).post(current_lock_key));
    assert_eq!(key_of!(App::new().service(scope.wrap(shop())), path), expected);
    let scope = web::scope("/shops/{shop}").service(web::resource(inner).post(current_lock_key));
    assert_eq!(key_of!(App::new().service(scope).wrap(shop()), path), expected);
}

#[actix_web::test]
async fn path_values_are_decoded_as_in_axum() {
    let resource = || web::resource("/orders/{id}/pay").post(current_lock_key);
    for (sent, value) in [
        ("7", "7"),
        ("a%20b", "a b"),
        ("a%2Fb", "a/b"),
        ("a%2fb", "a/b"),
        ("a+b", "a+b"),
        ("a%2Bb", "a+b"),
        ("50%25", "50%"),
        ("%252F", "%2F"),
        ("%C3%A4", "ä"),
        ("a%00b", "a\0b"),
        ("%zz", "%zz"),
    ] {
        let expected = Key::path_param("id", value).to_string();
        let path = format!("/orders/{sent}/pay");
        let inside = App::new().service(resource().wrap(id_lock_layer()));
        assert_eq!(key_of!(inside, &path), expected, "{sent} around the resource");
        let around = App::new().service(resource()).wrap(id_lock_layer());
        assert_eq!(key_of!(around, &path), expected, "{sent} around the app");
    }
}

#[actix_web::test]
async fn non_utf8_path_value_is_400() {
    let resource = || web::resource("/orders/{id}/pay").post(current_lock_key);
    let inside =
        init_service(App::new().service(resource().wrap(id_lock_layer())).app_data(store_data()))
            .await;
    let around =
        init_service(App::new().service(resource()).wrap(id_lock_layer()).app_data(store_data()))
            .await;
    for sent in ["%ff", "a%C3", "%25ff%80"] {
        let path = format!("/orders/{sent}/pay");
        assert_eq!(post_status(&inside, &path).await, StatusCode::BAD_REQUEST, "{sent}");
        assert_eq!(post_status(&around, &path).await, StatusCode::BAD_REQUEST, "{sent}");
        let unmatched = format!("/other/{sent}");
        assert_eq!(post_status(&around, &unmatched).await, StatusCode::NOT_FOUND, "{sent}");
    }
}

#[actix_web::test]
async fn percent_encoded_route_still_takes_the_lock() {
    let app = App::new()
        .service(web::resource("/orders/{id}/pay").post(current_lock_key))
        .wrap(id_lock_layer());
    let expected = Key::path_param("id", "7").to_string();
    assert_eq!(key_of!(app, "/%6frders/%37/p%61y"), expected);
}

#[actix_web::test]
async fn unmatched_request_takes_no_lock() {
    let app = App::new()
        .service(web::resource("/orders/{id}/pay").post(current_lock_key))
        .default_service(web::to(assert_unlocked))
        .wrap(id_lock_layer())
        .app_data(store_data());
    assert_eq!(post_status(&init_service(app).await, "/nothing").await, StatusCode::OK);
}

#[actix_web::test]
async fn key_closure_receives_the_http_request() {
    let by_tenant = LockLayer::by_key("tenant", |request: &HttpRequest| {
        Some(request.headers().get("tenant")?.to_str().ok()?.to_owned())
    });
    let app = App::new()
        .service(web::resource("/orders/{id}").post(current_lock_key).wrap(by_tenant))
        .app_data(store_data());
    let app = init_service(app).await;
    assert_eq!(post_status(&app, "/orders/7").await, StatusCode::BAD_REQUEST);
    let request = TestRequest::post().uri("/orders/7").insert_header(("tenant", "a b"));
    let body = call_and_read_body(&app, request.to_request()).await;
    assert_eq!(body, Key::custom("a b").named("tenant").to_string());
}
