//! The `Location` of a 202 leads to the status routes, wherever they are mounted.

use actix_web::{
    App,
    test::{TestRequest, call_service, init_service},
    web::{self, Data},
};
use lockgate_actix_web::{DeferLayer, DeferredRoutes, LockLayer, Store, deferred_routes};

/// Follows the `Location` of a 202, which has to begin with this path.
async fn check_location(store: &Store, status_routes: DeferredRoutes, path: &str) {
    let refund = web::resource("/orders/{id}/refund")
        .post(async || "refunded")
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new().background());
    let app = App::new().service(refund).service(status_routes);
    let app = init_service(app.app_data(Data::new(store.clone()))).await;
    let post = TestRequest::post().uri("/orders/7/refund").to_request();
    let accepted = call_service(&app, post).await;
    assert_eq!(accepted.status().as_u16(), 202);
    let location = accepted.headers().get("location").expect("one of a 202");
    let location = location.to_str().expect("a path");
    assert!(location.starts_with(&format!("{path}/")), "{location}");
    let get = TestRequest::get().uri(location).to_request();
    assert_eq!(call_service(&app, get).await.status().as_u16(), 200, "{location}");
}

// One test: the mounts of a process are known to all its layers.
#[actix_web::test]
async fn location_leads_to_the_mounted_status_routes() {
    let store = Store::memory();
    check_location(&store, deferred_routes("/jobs").store(&store), "/jobs").await;
    // The store is that of the request.
    check_location(&store, deferred_routes("/status/of/jobs/"), "/status/of/jobs").await;
    check_location(&store, deferred_routes("/deferred"), "/deferred").await;
}
