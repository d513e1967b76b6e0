//! Routes with special keys, access lists and responses of the RateLimitLayer.

use axum::{
    Router,
    extract::Request,
    http::HeaderValue,
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use lockgate_axum::{
    AccessLists, ClientAddress, DeferLayer, Key, KeyPart, LockLayer, MissingAddress, RateHeaders,
    RateLimitLayer, Reply,
};

use super::{
    super::{LOOPBACK_NETWORK, RequestTenant, RequestUser},
    AppRoutes, handle_request,
    lock_option_routes::handle_with_locks,
    quota_per_minute,
};

pub(super) fn rate_limit_option_routes() -> AppRoutes {
    client_address_routes()
        .merge(key_source_routes())
        .merge(similar_key_routes())
        .merge(access_list_routes())
        .merge(response_option_routes())
}

fn behind_local_proxies() -> ClientAddress {
    ClientAddress::behind_proxies([LOOPBACK_NETWORK])
}

fn rate_limited_route(path: &str, layer: RateLimitLayer) -> AppRoutes {
    Router::new().route(path, any(handle_request)).layer(layer)
}

fn client_address_routes() -> AppRoutes {
    let client = |path, address| {
        rate_limited_route(
            path,
            RateLimitLayer::by_client(address, quota_per_minute(2)).policy_name("client"),
        )
    };
    let lock = |path| {
        Router::new()
            .route(path, any(handle_request))
            .layer(LockLayer::by_client(behind_local_proxies()))
    };
    client("/client/list", behind_local_proxies())
        .merge(client("/client/forwarded", behind_local_proxies().forwarded_header()))
        .merge(client("/client/field", behind_local_proxies().header("X-Client")))
        .merge(client("/client/hops", ClientAddress::behind_hops(2)))
        .merge(client("/client/stranger", ClientAddress::behind_proxies(["192.0.2.0/24"])))
        .merge(client("/client/skip", behind_local_proxies().on_missing(MissingAddress::Skip)))
        .merge(client("/client/shared", behind_local_proxies().on_missing(MissingAddress::Shared)))
        .merge(client("/client/wide", behind_local_proxies().ipv6_prefix(48)))
        .merge(lock("/client/lock"))
        .merge(lock("/client/later").layer(DeferLayer::new()))
}

fn key_source_routes() -> AppRoutes {
    let three = (
        KeyPart::client(behind_local_proxies()),
        KeyPart::path_param("id"),
        KeyPart::header("x-api-key"),
    );
    let user = RateLimitLayer::by_extension::<RequestUser>("user", quota_per_minute(2))
        .policy_name("user");
    let lock =
        |path, layer: LockLayer| Router::new().route(path, any(handle_with_locks)).layer(layer);
    rate_limited_route("/by/extension", user)
        .layer(from_fn(authenticate_by_headers))
        .merge(rate_limited_route(
            "/by/three/{id}",
            RateLimitLayer::by(three, quota_per_minute(2)).policy_name("three"),
        ))
        .merge(
            lock("/by/lock", LockLayer::by_extension::<RequestUser>("user"))
                .layer(from_fn(authenticate_by_headers)),
        )
        .merge(lock(
            "/by/tenant/{id}",
            LockLayer::by((KeyPart::path_param("id"), KeyPart::header("x-tenant"))),
        ))
}

/// Key sources whose values may be equal, and policies with similar names.
fn similar_key_routes() -> AppRoutes {
    let user = || LockLayer::by_extension::<RequestUser>("user");
    let tenant = || LockLayer::by_extension::<RequestTenant>("tenant");
    let lock =
        |path, layer: LockLayer| Router::new().route(path, any(handle_with_locks)).layer(layer);
    let name = |path, name: &str| {
        rate_limited_route(path, RateLimitLayer::by_ip(quota_per_minute(1)).policy_name(name))
    };
    let two = RateLimitLayer::by_ip(quota_per_minute(1)).policy_name("a/b");
    rate_limited_route(
        "/alike/user",
        RateLimitLayer::by_extension::<RequestUser>("user", quota_per_minute(1)),
    )
    .merge(rate_limited_route(
        "/alike/tenant",
        RateLimitLayer::by_extension::<RequestTenant>("tenant", quota_per_minute(1)),
    ))
    .merge(rate_limited_route(
        "/alike/key-user",
        RateLimitLayer::by_key("user", super::user_header, quota_per_minute(1)),
    ))
    .merge(rate_limited_route(
        "/alike/key-owner",
        RateLimitLayer::by_key("owner", super::user_header, quota_per_minute(1)),
    ))
    .merge(lock("/alike/lock", user()))
    .merge(lock("/alike/other-lock", tenant()))
    .merge(lock("/alike/both-locks", tenant()).layer(user()))
    .layer(from_fn(authenticate_by_headers))
    .merge(name("/alike/search", "検索"))
    .merge(name("/alike/login", "登録"))
    .merge(rate_limited_route(
        "/alike/names",
        two.and(RateLimitLayer::by_ip(quota_per_minute(2)).policy_name("a b")),
    ))
}

/// Authentication that stores the user and the tenant as extensions.
async fn authenticate_by_headers(mut request: Request, next: Next) -> Response {
    let user = request.headers().get("x-user").map(HeaderValue::to_str);
    if let Some(user) = user.map(|user| RequestUser(user.unwrap_or_default().to_owned())) {
        request.extensions_mut().insert(user);
    }
    let tenant = request.headers().get("x-tenant").map(HeaderValue::to_str);
    if let Some(tenant) = tenant.map(|tenant| RequestTenant(tenant.unwrap_or_default().to_owned()))
    {
        request.extensions_mut().insert(tenant);
    }
    next.run(request).await
}

fn access_list_routes() -> AppRoutes {
    let by_address = AccessLists::new().allow(["198.51.100.0/24"]).deny(["203.0.113.0/24"]);
    let by_key = AccessLists::new()
        .allow([LOOPBACK_NETWORK])
        .client_address(
            ClientAddress::behind_proxies([LOOPBACK_NETWORK])
                .header("x-client")
                .on_missing(MissingAddress::Shared),
        )
        .allow_key(Key::header("x-api-key", b"free"))
        .deny_key(Key::header("x-api-key", b"stolen"));
    let addresses = RateLimitLayer::by_client(behind_local_proxies(), quota_per_minute(2))
        .policy_name("listed");
    let keys = RateLimitLayer::by_header("x-api-key", quota_per_minute(2)).policy_name("listed");
    rate_limited_route("/listed/address", addresses.access_lists(by_address))
        .merge(rate_limited_route("/listed/key", keys.access_lists(by_key)))
}

fn response_option_routes() -> AppRoutes {
    let route_with = |path, set: fn(RateLimitLayer) -> RateLimitLayer| {
        rate_limited_route(
            path,
            set(RateLimitLayer::by_header("x-api-key", quota_per_minute(1))
                .policy_name("header-test")),
        )
    };
    route_with("/rate-headers/draft", |layer| layer)
        .merge(route_with("/rate-headers/legacy", |layer| layer.rate_headers(RateHeaders::Legacy)))
        .merge(route_with("/rate-headers/both", |layer| {
            layer.rate_headers(RateHeaders::Both).expose_headers()
        }))
        .merge(route_with("/rate-headers/off", |layer| layer.rate_headers(RateHeaders::Off)))
        .merge(route_with("/rate-headers/preflights", RateLimitLayer::charge_preflights))
        .merge(route_with("/rate-headers/grpc", RateLimitLayer::grpc_refusals))
        .merge(route_with("/rate-headers/own", |layer| {
            layer.refusal_response(|refusal| {
                let names: Vec<_> = refusal.violated().map(|policy| policy.name).collect();
                let text = format!("{:?}: {names:?}", refusal.reason());
                Reply::new(420).header("content-type", "text/plain").body(text)
            })
        }))
}
