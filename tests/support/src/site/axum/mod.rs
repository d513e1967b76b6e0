//! The application in axum.

mod accepting;
mod between;
mod carried;
mod ends;
mod limits;
mod nested;
mod policies;
mod rates;

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
    CurrentJob, CurrentLock, CurrentRate, DeferLayer, DeferWorker, KeyPart, LockLayer, LockOutage,
    Quota, RateLimitLayer, RateLimitOutage, deferred_routes,
};
use tokio::{net::TcpListener, sync::oneshot};

use self::between::{guard, late, rebuild, rewrite};
use super::{App, Running, User, authorization, field_value};
use crate::desk::{Body as Told, Seen};

pub(super) async fn serve(app: &App) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let (stop, stopped) = oneshot::channel::<()>();
    let routes = with_store(routes(app).merge(unknown()).merge(status()), app)
        .with_state(app.clone())
        .into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let ended = tokio::spawn(async {
        let _ = server.into_future().await;
    });
    Running { addr, stop, ended }
}

/// See [`Framework::carry_unnamed`](super::Framework::carry_unnamed).
pub(super) fn carry_unnamed() {
    let _ = carried::carry_unnamed();
}

pub(super) fn worker(app: &App) -> DeferWorker {
    let routes = with_store(routes(app), app).with_state(app.clone());
    let desk = app.desk.clone();
    DeferWorker::new(&app.store, routes).restore_extension::<User>().authorize(move |run| {
        let desk = desk.clone();
        async move { authorization(&desk, &run) }
    })
}

type Routes = Router<App>;

fn with_store(routes: Routes, app: &App) -> Routes {
    if app.given { routes.layer(Extension(app.store.clone())) } else { routes }
}

fn routes(app: &App) -> Routes {
    quotas()
        .merge(locks())
        .merge(ends::ends())
        .merge(policies::policies(app))
        .merge(rates::rates())
        .merge(limits::limits())
        .merge(odd_locks())
        .merge(nested::nested())
        .merge(deferring())
        .merge(accepting::accepting())
        .merge(between(app))
        .merge(carried::carried())
}

fn minute(requests: u64) -> Quota {
    Quota::requests(requests).per(Duration::from_secs(60))
}

fn quotas() -> Routes {
    let one = |path, layer: RateLimitLayer| Router::new().route(path, any(work)).layer(layer);
    let second = Quota::requests(1).per(Duration::from_secs(1));
    one("/quota/three", RateLimitLayer::by_ip(minute(3)).policy_name("three"))
        .merge(one("/quota/ten", RateLimitLayer::by_ip(minute(10)).policy_name("ten")))
        .merge(one("/quota/second", RateLimitLayer::by_ip(second).policy_name("second")))
        .merge(one(
            "/quota/header",
            RateLimitLayer::by_header("x-api-key", minute(2)).policy_name("header"),
        ))
        .merge(one(
            "/quota/param/{id}",
            RateLimitLayer::by_path_param("id", minute(2)).policy_name("param"),
        ))
        .merge(one(
            "/quota/number/{id}",
            RateLimitLayer::by_path_param_as::<u64>("id", minute(2)).policy_name("number"),
        ))
        .merge(one(
            "/quota/number-key/{id}",
            RateLimitLayer::by(KeyPart::path_param_as::<u64>("id"), minute(2))
                .policy_name("number-key"),
        ))
        .merge(one(
            "/quota/user",
            RateLimitLayer::by_key("user", user, minute(2)).policy_name("user"),
        ))
        .merge(
            one(
                "/quota/both/{id}",
                RateLimitLayer::by_path_param("id", minute(2)).policy_name("inner"),
            )
            .layer(RateLimitLayer::by_route(minute(5)).policy_name("outer")),
        )
        .merge(one(
            "/quota/admit",
            RateLimitLayer::by_ip(minute(3)).policy_name("admit").on_outage(RateLimitOutage::Admit),
        ))
        .merge(one(
            "/quota/refuse",
            RateLimitLayer::by_ip(minute(3))
                .policy_name("refuse")
                .on_outage(RateLimitOutage::Refuse),
        ))
}

fn locks() -> Routes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(work)).layer(layer);
    let all_but_patch = MethodFilter::GET
        .or(MethodFilter::HEAD)
        .or(MethodFilter::OPTIONS)
        .or(MethodFilter::POST)
        .or(MethodFilter::PUT)
        .or(MethodFilter::DELETE);
    Router::new()
        .route("/orders/{id}/pay", on(all_but_patch, work))
        .layer(LockLayer::by_path_param("id"))
        .merge(one("/orders/{id}/ship", by_id().wait(Duration::from_secs(15))))
        .merge(one("/orders/{id}/hurry", by_id().wait(Duration::from_millis(100))))
        .merge(one("/orders/{id}/audit", by_id().all_methods()))
        .merge(one("/orders/{id}/anyway", by_id().on_outage(LockOutage::Admit)))
        .merge(one("/users/{id}", by_id().scope("users")))
        .merge(one("/ab/{id}", by_id().scope("a:b")))
        .merge(one("/a/{id}", by_id().scope("a")))
}

fn odd_locks() -> Routes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(work)).layer(layer);
    one("/account", LockLayer::by_header("x-account"))
        .merge(one("/nested/{id}", by_id()).layer(by_id()))
        .merge(one("/wrong/{id}", LockLayer::by_path_param("order")))
        .merge(
            Router::new()
                .route("/inverted/{id}", any(work))
                .layer(DeferLayer::new())
                .layer(by_id()),
        )
}

fn deferring() -> Routes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, lock: LockLayer, defer: DeferLayer| {
        Router::new().route(path, any(work)).layer(lock).layer(defer)
    };
    let hasty = DeferLayer::new().body_read_timeout(Duration::from_millis(300));
    let kept = DeferLayer::new().keep_header("Authorization").credential_header("X-Api-Key");
    let owned = || DeferLayer::new().owner(user).status_path("/mine");
    let remembered = || owned().idempotent_direct();
    let crowded = DeferLayer::new().owner(user).max_queue_jobs(64 * 64).defer_always();
    one("/orders/{id}/refund", by_id(), DeferLayer::new())
        .merge(one("/peer", LockLayer::by_ip(), DeferLayer::new()))
        .merge(one("/small/{id}", by_id(), DeferLayer::new().body_limit(16).max_resource_jobs(2)))
        .merge(one("/hasty/{id}", by_id(), hasty))
        .merge(one("/kept/{id}", by_id(), kept))
        .merge(one("/owned/{id}", by_id(), owned()))
        .merge(one("/evicting/{id}", by_id(), remembered().max_ended_bytes(64)))
        .merge(one("/few-keys/{id}", by_id(), remembered().max_idempotency_keys(64)))
        .merge(one("/few/{id}", by_id(), DeferLayer::new().owner(user).max_owner_jobs(128)))
        .merge(one(
            "/few-bytes/{id}",
            by_id(),
            DeferLayer::new().owner(user).max_owner_bytes(64 * 400),
        ))
        .merge(one("/crowded/{id}", by_id(), crowded))
        .merge(
            one("/metered/{id}", by_id(), DeferLayer::new())
                .layer(RateLimitLayer::by_ip(minute(5)).policy_name("metered")),
        )
}

/// Layers of the application's own between ours.
fn between(app: &App) -> Routes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path| Router::new().route(path, any(work)).layer(by_id());
    one("/guarded/{id}")
        .layer(DeferLayer::new())
        .layer(from_fn(guard))
        .merge(one("/rewritten/{id}").layer(from_fn(rewrite)).layer(DeferLayer::new()))
        .merge(one("/rebuilt/{id}").layer(from_fn(rebuild)).layer(DeferLayer::new()))
        .merge(
            one("/late/{id}").layer(from_fn_with_state(app.clone(), late)).layer(DeferLayer::new()),
        )
}

/// Served, but not known to the worker.
fn unknown() -> Routes {
    Router::new()
        .route("/unknown/{id}", any(work))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new())
}

fn status() -> Routes {
    let mine: Routes = deferred_routes("/mine").visible_to(user).into();
    let found = deferred_routes("/found").visible_to_async(|parts| {
        let user = user(parts);
        async { user }
    });
    let mine = mine.merge(Routes::from(found));
    mine.merge(deferred_routes("/deferred"))
}

fn user(parts: &Parts) -> Option<String> {
    let user = parts.headers.get("x-user")?;
    user.to_str().ok().map(str::to_owned)
}

async fn work(
    State(app): State<App>,
    lock: Option<CurrentLock>,
    rate: Option<CurrentRate>,
    job: Option<CurrentJob>,
    id: Option<Path<String>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let seen = Seen {
        id: id.map(|Path(id)| id),
        fence: lock.and_then(|lock| lock.0.fence()),
        remaining: rate.map(|rate| rate.0.decision().remaining()),
        run: job.as_ref().map(|job| job.0.fence),
        job: job.map(|job| (job.0.id.to_string(), job.0.attempt)),
        ..seen(&app, &parts)
    };
    answer(app.desk.work(seen, body.into_data_stream()).await)
}

fn seen(app: &App, parts: &Parts) -> Seen {
    Seen {
        site: app.site.to_string(),
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        route: parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned(),
        headers: fields(parts),
        user: parts.extensions.get::<User>().map(User::to_string),
        peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.to_string()),
        ..Seen::default()
    }
}

fn answer(told: crate::desk::Told) -> Response {
    let mut response = Response::builder().status(told.status);
    for (name, value) in told.headers {
        response = response.header(name, value);
    }
    let body = match told.body {
        Told::Whole(bytes) => Body::from(bytes),
        Told::Stream(stream) => Body::from_stream(stream),
    };
    response.body(body).expect("the desk tells valid fields")
}

fn fields(parts: &Parts) -> Vec<(String, String)> {
    let fields = parts.headers.iter();
    fields.map(|(name, value)| (name.to_string(), field_value(value.as_bytes()))).collect()
}
