//! The core's layers and worker for axum.

use crate::axum_framework::AxumFramework;

/// Limits requests per client: 429 beyond the quota, `RateLimit` headers within it.
///
/// All constructors and settings are those of the [core's
/// type](lockgate::rate_limit::RateLimitLayer). Closures get the request's
/// [`Parts`](axum::http::request::Parts).
///
/// ```
/// # use std::time::Duration;
/// # use axum::{Extension, Router, body::Body, extract::Request, routing::get};
/// # use lockgate_axum::{Quota, RateLimitLayer, Store};
/// # use tower::ServiceExt as _;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::requests(1).per(Duration::from_secs(60));
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(RateLimitLayer::by_header("x-api-key", quota))
///     .layer(Extension(Store::memory()));
///
/// let request = || Request::get("/").header("x-api-key", "abc").body(Body::empty());
/// assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
/// assert_eq!(app.oneshot(request()?).await?.status(), 429);
/// # Ok(()) }
/// ```
pub type RateLimitLayer = lockgate::rate_limit::RateLimitLayer<AxumFramework>;

/// Serializes requests per resource: 409 with `Retry-After` while another request holds the lock,
/// or a wait in its queue.
///
/// All constructors and settings are those of the [core's type](lockgate::lock::LockLayer).
/// Closures get the request's [`Parts`](axum::http::request::Parts).
///
/// ```
/// # use axum::{Extension, Router, body::Body, extract::Request, routing::post};
/// # use lockgate_axum::{Key, LockLayer, Store};
/// # use tower::ServiceExt as _;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let app: Router = Router::new()
///     .route("/orders/{id}/pay", post(async || "paid"))
///     .layer(LockLayer::by_path_param_as::<u64>("id"))
///     .layer(Extension(store.clone()));
///
/// let guard = store.lock(Key::path_param("id", "7")).acquire().await?;
/// let request = |id| Request::post(format!("/orders/{id}/pay")).body(Body::empty());
/// assert_eq!(app.clone().oneshot(request("07")?).await?.status(), 409);
/// assert_eq!(app.clone().oneshot(request("8")?).await?.status(), 200);
/// guard.release().await;
/// assert_eq!(app.oneshot(request("7")?).await?.status(), 200);
/// # Ok(()) }
/// ```
pub type LockLayer = lockgate::lock::LockLayer<AxumFramework>;

/// Accepts requests for a busy resource: 202 now, and one run later, in the order of acceptance.
///
/// All constructors and settings are those of the [core's type](lockgate::defer::DeferLayer).
/// Closures get the request's [`Parts`](axum::http::request::Parts).
///
/// ```
/// # use axum::{Extension, Router, body::Body, extract::Request, routing::post};
/// # use lockgate_axum::{DeferLayer, Key, LockLayer, Store};
/// # use tower::ServiceExt as _;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let app: Router = Router::new()
///     .route("/orders/{id}/refund", post(async || "refunded"))
///     .layer(LockLayer::by_path_param_as::<u64>("id"))
///     .layer(DeferLayer::new())
///     .layer(Extension(store.clone()));
///
/// let _guard = store.lock(Key::path_param("id", "7")).acquire().await?;
/// let request = Request::post("/orders/7/refund").body(Body::empty())?;
/// let response = app.oneshot(request).await?;
/// assert_eq!(response.status(), 202);
/// assert!(response.headers()["location"].to_str()?.starts_with("/deferred/"));
/// # Ok(()) }
/// ```
pub type DeferLayer = lockgate::defer::DeferLayer<AxumFramework>;

/// Runs deferred requests through a `Router` or another service.
///
/// All constructors and settings are those of the [core's type](lockgate::defer::DeferWorker).
///
/// ```
/// # use axum::{Extension, Router, body::Body, extract::Request, routing::post};
/// # use lockgate_axum::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
/// # use tower::ServiceExt as _;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let app: Router = Router::new()
///     .route("/orders/{id}/refund", post(async || "refunded"))
///     .layer(LockLayer::by_path_param_as::<u64>("id"))
///     .layer(DeferLayer::new().background())
///     .layer(Extension(store.clone()))
///     .merge(deferred_routes("/deferred").store(&store));
/// let worker = tokio::spawn(DeferWorker::new(&store, app.clone()).run(std::future::pending()));
///
/// let request = Request::post("/orders/7/refund").body(Body::empty())?;
/// let accepted = app.clone().oneshot(request).await?;
/// let response = format!("{}/response", accepted.headers()["location"].to_str()?);
/// let request = Request::get(response).header("prefer", "wait=10").body(Body::empty())?;
/// assert_eq!(app.oneshot(request).await?.status(), 200); // the response of the handler
/// # worker.abort();
/// # Ok(()) }
/// ```
pub type DeferWorker = lockgate::defer::DeferWorker<AxumFramework>;

/// Part of a key, for `by` of the layers: a tuple of up to four parts is one key.
///
/// All constructors are those of the [core's type](lockgate::driver::KeySource).
pub type KeyPart = lockgate::driver::KeySource<AxumFramework>;
