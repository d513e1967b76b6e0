//! Routes whose limits have keys, lists and answers of their own.

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
    super::{LOCAL, Tenant, User},
    Routes, minute,
    policies::locked,
    work,
};

pub(super) fn rates() -> Routes {
    clients().merge(keys()).merge(alike()).merge(lists()).merge(answers())
}

fn behind() -> ClientAddress {
    ClientAddress::behind_proxies([LOCAL])
}

fn one(path: &str, layer: RateLimitLayer) -> Routes {
    Router::new().route(path, any(work)).layer(layer)
}

fn clients() -> Routes {
    let client = |path, address| {
        one(path, RateLimitLayer::by_client(address, minute(2)).policy_name("client"))
    };
    let lock = |path| Router::new().route(path, any(work)).layer(LockLayer::by_client(behind()));
    client("/client/list", behind())
        .merge(client("/client/forwarded", behind().forwarded_header()))
        .merge(client("/client/field", behind().header("X-Client")))
        .merge(client("/client/hops", ClientAddress::behind_hops(2)))
        .merge(client("/client/stranger", ClientAddress::behind_proxies(["192.0.2.0/24"])))
        .merge(client("/client/skip", behind().on_missing(MissingAddress::Skip)))
        .merge(client("/client/shared", behind().on_missing(MissingAddress::Shared)))
        .merge(client("/client/wide", behind().ipv6_prefix(48)))
        .merge(lock("/client/lock"))
        .merge(lock("/client/later").layer(DeferLayer::new()))
}

fn keys() -> Routes {
    let three =
        (KeyPart::client(behind()), KeyPart::path_param("id"), KeyPart::header("x-api-key"));
    let user = RateLimitLayer::by_extension::<User>("user", minute(2)).policy_name("user");
    let lock = |path, layer: LockLayer| Router::new().route(path, any(locked)).layer(layer);
    one("/by/extension", user)
        .layer(from_fn(know))
        .merge(one("/by/three/{id}", RateLimitLayer::by(three, minute(2)).policy_name("three")))
        .merge(lock("/by/lock", LockLayer::by_extension::<User>("user")).layer(from_fn(know)))
        .merge(lock(
            "/by/tenant/{id}",
            LockLayer::by((KeyPart::path_param("id"), KeyPart::header("x-tenant"))),
        ))
}

/// Sources whose values may be the same text, and policies whose names are alike.
fn alike() -> Routes {
    let user = || LockLayer::by_extension::<User>("user");
    let tenant = || LockLayer::by_extension::<Tenant>("tenant");
    let lock = |path, layer: LockLayer| Router::new().route(path, any(locked)).layer(layer);
    let name = |path, name: &str| one(path, RateLimitLayer::by_ip(minute(1)).policy_name(name));
    let two = RateLimitLayer::by_ip(minute(1)).policy_name("a/b");
    one("/alike/user", RateLimitLayer::by_extension::<User>("user", minute(1)))
        .merge(one("/alike/tenant", RateLimitLayer::by_extension::<Tenant>("tenant", minute(1))))
        .merge(one("/alike/key-user", RateLimitLayer::by_key("user", super::user, minute(1))))
        .merge(one("/alike/key-owner", RateLimitLayer::by_key("owner", super::user, minute(1))))
        .merge(lock("/alike/lock", user()))
        .merge(lock("/alike/other-lock", tenant()))
        .merge(lock("/alike/both-locks", tenant()).layer(user()))
        .layer(from_fn(know))
        .merge(name("/alike/search", "検索"))
        .merge(name("/alike/login", "登録"))
        .merge(one("/alike/names", two.and(RateLimitLayer::by_ip(minute(2)).policy_name("a b"))))
}

/// What an authentication does.
async fn know(mut request: Request, next: Next) -> Response {
    let user = request.headers().get("x-user").map(HeaderValue::to_str);
    if let Some(user) = user.map(|user| User(user.unwrap_or_default().to_owned())) {
        request.extensions_mut().insert(user);
    }
    let tenant = request.headers().get("x-tenant").map(HeaderValue::to_str);
    if let Some(tenant) = tenant.map(|tenant| Tenant(tenant.unwrap_or_default().to_owned())) {
        request.extensions_mut().insert(tenant);
    }
    next.run(request).await
}

fn lists() -> Routes {
    let by_address = AccessLists::new().allow(["198.51.100.0/24"]).deny(["203.0.113.0/24"]);
    let by_key = AccessLists::new()
        .allow([LOCAL])
        .client_address(
            ClientAddress::behind_proxies([LOCAL])
                .header("x-client")
                .on_missing(MissingAddress::Shared),
        )
        .allow_key(Key::header("x-api-key", b"free"))
        .deny_key(Key::header("x-api-key", b"stolen"));
    let addresses = RateLimitLayer::by_client(behind(), minute(2)).policy_name("listed");
    let keys = RateLimitLayer::by_header("x-api-key", minute(2)).policy_name("listed");
    one("/listed/address", addresses.access_lists(by_address))
        .merge(one("/listed/key", keys.access_lists(by_key)))
}

fn answers() -> Routes {
    let told = |path, set: fn(RateLimitLayer) -> RateLimitLayer| {
        one(path, set(RateLimitLayer::by_header("x-api-key", minute(1)).policy_name("told")))
    };
    told("/told/draft", |layer| layer)
        .merge(told("/told/legacy", |layer| layer.rate_headers(RateHeaders::Legacy)))
        .merge(told("/told/both", |layer| layer.rate_headers(RateHeaders::Both).expose_headers()))
        .merge(told("/told/off", |layer| layer.rate_headers(RateHeaders::Off)))
        .merge(told("/told/preflights", RateLimitLayer::charge_preflights))
        .merge(told("/told/grpc", RateLimitLayer::grpc_refusals))
        .merge(told("/told/own", |layer| {
            layer.refusal_response(|refusal| {
                let names: Vec<_> = refusal.violated().map(|policy| policy.name).collect();
                let text = format!("{:?}: {names:?}", refusal.reason());
                Reply::new(420).header("content-type", "text/plain").body(text)
            })
        }))
}
