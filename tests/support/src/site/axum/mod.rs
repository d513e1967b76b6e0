//! The application of the scenarios in axum.

mod app_middleware;
mod defer_option_routes;
mod lock_hold_routes;
mod lock_option_routes;
mod nested_routes;
mod rate_limit_option_routes;
mod rate_policy_routes;
mod snapshot_routes;

use std::{future::IntoFuture as _, net::SocketAddr, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{ConnectInfo, MatchedPath, Path, Request, State},
    http::request::Parts,
    middleware::{from_fn, from_fn_with_state},
    response::Response,
    routing::{MethodFilter, any, on},
};
use lockgate_axum::{
    CurrentCancellation, CurrentJob, CurrentLock, CurrentRate, DeferLayer, DeferWorker, KeyPart,
    LockLayer, LockOutage, Quota, RateLimitLayer, RateLimitOutage, deferred_routes,
};
use tokio::{net::TcpListener, sync::oneshot};

use self::app_middleware::{
    delay_conflict_response, rebuild_response, replace_conflict_status, require_pass_header,
};
use super::{AppState, RequestUser, RunningServer, authorize_run, header_text};
use crate::scripted_handler::{HandlerBody, ObservedRequest};

pub(super) async fn start_server(app: &AppState) -> RunningServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let (stop, stopped) = oneshot::channel::<()>();
    let routes =
        attach_store(all_routes(app).merge(route_without_worker()).merge(status_routes()), app)
            .with_state(app.clone())
            .into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let ended = tokio::spawn(async {
        let _ = server.into_future().await;
    });
    RunningServer { addr, stop, finished: ended }
}

/// See [`WebFramework`](super::WebFramework::build_unscoped_merge_layer).
pub(super) fn build_unscoped_merge_layer() {
    let _ = snapshot_routes::build_unscoped_merge_layer();
}

pub(super) fn build_worker(app: &AppState) -> DeferWorker {
    let routes = attach_store(all_routes(app), app).with_state(app.clone());
    let handler = app.handler.clone();
    DeferWorker::new(&app.store, routes).for_user::<RequestUser>().authorize(move |run| {
        let handler = handler.clone();
        async move { authorize_run(&handler, &run) }
    })
}

type AppRoutes = Router<AppState>;

fn attach_store(routes: AppRoutes, app: &AppState) -> AppRoutes {
    if app.injects_store { routes.layer(Extension(app.store.clone())) } else { routes }
}

fn all_routes(app: &AppState) -> AppRoutes {
    quota_routes()
        .merge(lock_routes())
        .merge(lock_hold_routes::lock_hold_routes())
        .merge(lock_option_routes::lock_option_routes(app))
        .merge(rate_limit_option_routes::rate_limit_option_routes())
        .merge(rate_policy_routes::rate_policy_routes())
        .merge(special_lock_routes())
        .merge(nested_routes::nested_routes())
        .merge(defer_routes())
        .merge(defer_option_routes::defer_option_routes())
        .merge(app_middleware_routes(app))
        .merge(snapshot_routes::snapshot_routes())
}

fn quota_per_minute(requests: u64) -> Quota {
    Quota::requests(requests).per(Duration::from_secs(60))
}

fn quota_routes() -> AppRoutes {
    let one =
        |path, layer: RateLimitLayer| Router::new().route(path, any(handle_request)).layer(layer);
    let second = Quota::requests(1).per(Duration::from_secs(1));
    one("/quota/three", RateLimitLayer::by_ip(quota_per_minute(3)).policy_name("three"))
        .merge(one("/quota/ten", RateLimitLayer::by_ip(quota_per_minute(10)).policy_name("ten")))
        .merge(one("/quota/second", RateLimitLayer::by_ip(second).policy_name("second")))
        .merge(one(
            "/quota/header",
            RateLimitLayer::by_header("x-api-key", quota_per_minute(2)).policy_name("header"),
        ))
        .merge(one(
            "/quota/param/{id}",
            RateLimitLayer::by_path_param("id", quota_per_minute(2)).policy_name("param"),
        ))
        .merge(one(
            "/quota/number/{id}",
            RateLimitLayer::by_path_param_as::<u64>("id", quota_per_minute(2))
                .policy_name("number"),
        ))
        .merge(one(
            "/quota/number-key/{id}",
            RateLimitLayer::by(KeyPart::path_param_as::<u64>("id"), quota_per_minute(2))
                .policy_name("number-key"),
        ))
        .merge(one(
            "/quota/user",
            RateLimitLayer::by_key("user", user_header, quota_per_minute(2)).policy_name("user"),
        ))
        .merge(
            one(
                "/quota/both/{id}",
                RateLimitLayer::by_path_param("id", quota_per_minute(2)).policy_name("inner"),
            )
            .layer(RateLimitLayer::by_route(quota_per_minute(5)).policy_name("outer")),
        )
        .merge(one(
            "/quota/admit",
            RateLimitLayer::by_ip(quota_per_minute(3))
                .policy_name("admit")
                .on_outage(RateLimitOutage::Admit),
        ))
        .merge(one(
            "/quota/refuse",
            RateLimitLayer::by_ip(quota_per_minute(3))
                .policy_name("refuse")
                .on_outage(RateLimitOutage::Refuse),
        ))
}

fn lock_routes() -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(handle_request)).layer(layer);
    let all_but_patch = MethodFilter::GET
        .or(MethodFilter::HEAD)
        .or(MethodFilter::OPTIONS)
        .or(MethodFilter::POST)
        .or(MethodFilter::PUT)
        .or(MethodFilter::DELETE);
    Router::new()
        .route("/orders/{id}/pay", on(all_but_patch, handle_request))
        .layer(LockLayer::by_path_param("id"))
        .merge(one("/orders/{id}/ship", by_id().wait(Duration::from_secs(15))))
        .merge(one("/orders/{id}/hurry", by_id().wait(Duration::from_millis(100))))
        .merge(one("/orders/{id}/audit", by_id().all_methods()))
        .merge(one("/orders/{id}/anyway", by_id().on_outage(LockOutage::Admit)))
        .merge(one("/users/{id}", by_id().scope("users")))
        .merge(one("/ab/{id}", by_id().scope("a:b")))
        .merge(one("/a/{id}", by_id().scope("a")))
}

fn special_lock_routes() -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(handle_request)).layer(layer);
    one("/account", LockLayer::by_header("x-account"))
        .merge(one("/nested/{id}", by_id()).layer(by_id()))
        .merge(one("/wrong/{id}", LockLayer::by_path_param("order")))
        .merge(
            Router::new()
                .route("/inverted/{id}", any(handle_request))
                .layer(DeferLayer::new())
                .layer(by_id()),
        )
}

fn defer_routes() -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, lock: LockLayer, defer: DeferLayer| {
        Router::new().route(path, any(handle_request)).layer(lock).layer(defer)
    };
    let hasty = DeferLayer::new().body_read_timeout(Duration::from_millis(300));
    let with_kept_header =
        DeferLayer::new().keep_header("Authorization").credential_header("X-Api-Key");
    let owned = || DeferLayer::new().owner(user_header).status_path("/own-jobs");
    let remembered = || owned().idempotent_direct();
    let crowded = DeferLayer::new().owner(user_header).max_queue_jobs(64 * 64).background();
    one("/orders/{id}/refund", by_id(), DeferLayer::new())
        .merge(one("/peer", LockLayer::by_ip(), DeferLayer::new()))
        .merge(one("/small/{id}", by_id(), DeferLayer::new().body_limit(16).max_resource_jobs(2)))
        .merge(one("/hasty/{id}", by_id(), hasty))
        .merge(one("/kept/{id}", by_id(), with_kept_header))
        .merge(one("/owned/{id}", by_id(), owned()))
        .merge(one("/evicting/{id}", by_id(), remembered().max_ended_bytes(64)))
        .merge(one("/few-keys/{id}", by_id(), remembered().max_idempotency_keys(64)))
        .merge(one("/few/{id}", by_id(), DeferLayer::new().owner(user_header).max_owner_jobs(128)))
        .merge(one(
            "/few-bytes/{id}",
            by_id(),
            DeferLayer::new().owner(user_header).max_owner_bytes(64 * 400),
        ))
        .merge(one("/crowded/{id}", by_id(), crowded))
        .merge(
            one("/metered/{id}", by_id(), DeferLayer::new())
                .layer(RateLimitLayer::by_ip(quota_per_minute(5)).policy_name("metered")),
        )
}

/// Middlewares of the application between lockgate's layers.
fn app_middleware_routes(app: &AppState) -> AppRoutes {
    let by_id = || LockLayer::by_path_param("id");
    let locked_route = |path| Router::new().route(path, any(handle_request)).layer(by_id());
    locked_route("/guarded/{id}")
        .layer(DeferLayer::new())
        .layer(from_fn(require_pass_header))
        .merge(
            locked_route("/rewritten/{id}")
                .layer(from_fn(replace_conflict_status))
                .layer(DeferLayer::new()),
        )
        .merge(
            locked_route("/rebuilt/{id}").layer(from_fn(rebuild_response)).layer(DeferLayer::new()),
        )
        .merge(
            locked_route("/late/{id}")
                .layer(from_fn_with_state(app.clone(), delay_conflict_response))
                .layer(DeferLayer::new()),
        )
}

/// Route that the server has and the worker lacks.
fn route_without_worker() -> AppRoutes {
    Router::new()
        .route("/unknown/{id}", any(handle_request))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new())
}

fn status_routes() -> AppRoutes {
    let owner_routes: AppRoutes = deferred_routes("/own-jobs").visible_to(user_header).into();
    let found = deferred_routes("/found").visible_to_async(|parts| {
        let user = user_header(parts);
        async { user }
    });
    let own_routes = AppRoutes::from(deferred_routes("/own").for_user::<RequestUser>());
    let own_routes = own_routes.layer(from_fn(snapshot_routes::authenticate));
    let owner_routes = owner_routes.merge(AppRoutes::from(found)).merge(own_routes);
    owner_routes.merge(deferred_routes("/deferred"))
}

fn user_header(parts: &Parts) -> Option<String> {
    let user = parts.headers.get("x-user")?;
    user.to_str().ok().map(str::to_owned)
}

async fn handle_request(
    State(app): State<AppState>,
    lock: Option<CurrentLock>,
    rate: Option<CurrentRate>,
    job: Option<CurrentJob>,
    cancellation: CurrentCancellation,
    id: Option<Path<String>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let observed = ObservedRequest {
        path_id: id.map(|Path(id)| id),
        fence: lock.and_then(|lock| lock.0.fence()),
        quota_remaining: rate.map(|rate| rate.0.decision().remaining()),
        run_fence: job.as_ref().map(|job| job.0.fence),
        job: job.map(|job| (job.0.id.to_string(), job.0.attempt)),
        cancellation: cancellation.0,
        ..describe_request(&app, &parts)
    };
    build_response(app.handler.handle_request(observed, body.into_data_stream()).await)
}

fn describe_request(app: &AppState, parts: &Parts) -> ObservedRequest {
    ObservedRequest {
        site: app.site_name.to_string(),
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        route: parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned(),
        headers: header_pairs(parts),
        user: parts.extensions.get::<RequestUser>().map(RequestUser::to_string),
        peer_addr: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.to_string()),
        ..ObservedRequest::default()
    }
}

fn build_response(handler_response: crate::scripted_handler::HandlerResponse) -> Response {
    let mut response = Response::builder().status(handler_response.status);
    for (name, value) in handler_response.headers {
        response = response.header(name, value);
    }
    let body = match handler_response.body {
        HandlerBody::Whole(bytes) => Body::from(bytes),
        HandlerBody::Stream(stream) => Body::from_stream(stream),
    };
    response.body(body).expect("the scripted handler returns valid headers")
}

fn header_pairs(parts: &Parts) -> Vec<(String, String)> {
    let fields = parts.headers.iter();
    fields.map(|(name, value)| (name.to_string(), header_text(value.as_bytes()))).collect()
}
