//! Routes with special keys, access lists and responses of the RateLimitLayer.

use actix_web::{
    Error, HttpMessage as _,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::header::HeaderValue,
    middleware::{Next, from_fn},
    web::{ServiceConfig, resource},
};
use lockgate_actix_web::{
    AccessLists, ClientAddress, DeferLayer, Key, KeyPart, LockLayer, MissingAddress, RateHeaders,
    RateLimitLayer, Reply,
};

use super::{
    super::{LOOPBACK_NETWORK, RequestTenant, RequestUser},
    handle_request,
    lock_option_routes::handle_with_locks,
    quota_per_minute,
};

pub(super) fn rate_limit_option_routes(config: &mut ServiceConfig) {
    client_address_routes(config);
    key_source_routes(config);
    similar_key_routes(config);
    access_list_routes(config);
    response_option_routes(config);
}

fn behind_local_proxies() -> ClientAddress {
    ClientAddress::behind_proxies([LOOPBACK_NETWORK])
}

fn client_address_routes(config: &mut ServiceConfig) {
    let mut client = |path: &str, address| {
        let layer = RateLimitLayer::by_client(address, quota_per_minute(2)).policy_name("client");
        config.service(resource(path).to(handle_request).wrap(layer));
    };
    client("/client/list", behind_local_proxies());
    client("/client/forwarded", behind_local_proxies().forwarded_header());
    client("/client/field", behind_local_proxies().header("X-Client"));
    client("/client/hops", ClientAddress::behind_hops(2));
    client("/client/stranger", ClientAddress::behind_proxies(["192.0.2.0/24"]));
    client("/client/skip", behind_local_proxies().on_missing(MissingAddress::Skip));
    client("/client/shared", behind_local_proxies().on_missing(MissingAddress::Shared));
    client("/client/wide", behind_local_proxies().ipv6_prefix(48));
    let lock =
        |path| resource(path).to(handle_request).wrap(LockLayer::by_client(behind_local_proxies()));
    config.service(lock("/client/lock")).service(lock("/client/later").wrap(DeferLayer::new()));
}

fn key_source_routes(config: &mut ServiceConfig) {
    let three = (
        KeyPart::client(behind_local_proxies()),
        KeyPart::path_param("id"),
        KeyPart::header("x-api-key"),
    );
    let three = RateLimitLayer::by(three, quota_per_minute(2)).policy_name("three");
    let user = RateLimitLayer::by_extension::<RequestUser>("user", quota_per_minute(2))
        .policy_name("user");
    let lock = |path: &str, layer: LockLayer| resource(path).to(handle_with_locks).wrap(layer);
    let tenant = LockLayer::by((KeyPart::path_param("id"), KeyPart::header("x-tenant")));
    config
        .service(
            resource("/by/extension")
                .to(handle_request)
                .wrap(user)
                .wrap(from_fn(authenticate_by_headers)),
        )
        .service(resource("/by/three/{id}").to(handle_request).wrap(three))
        .service(
            lock("/by/lock", LockLayer::by_extension::<RequestUser>("user"))
                .wrap(from_fn(authenticate_by_headers)),
        )
        .service(lock("/by/tenant/{id}", tenant));
}

/// Key sources whose values may be equal, and policies with similar names.
fn similar_key_routes(config: &mut ServiceConfig) {
    let user = || LockLayer::by_extension::<RequestUser>("user");
    let tenant = || LockLayer::by_extension::<RequestTenant>("tenant");
    let one = |path: &str, layer: RateLimitLayer| resource(path).to(handle_request).wrap(layer);
    let lock = |path: &str, layer: LockLayer| resource(path).to(handle_with_locks).wrap(layer);
    let name = |path: &str, name: &str| {
        one(path, RateLimitLayer::by_ip(quota_per_minute(1)).policy_name(name))
    };
    let by_user = RateLimitLayer::by_extension::<RequestUser>("user", quota_per_minute(1));
    let by_tenant = RateLimitLayer::by_extension::<RequestTenant>("tenant", quota_per_minute(1));
    let two = RateLimitLayer::by_ip(quota_per_minute(1)).policy_name("a/b");
    config
        .service(one("/alike/user", by_user).wrap(from_fn(authenticate_by_headers)))
        .service(one("/alike/tenant", by_tenant).wrap(from_fn(authenticate_by_headers)))
        .service(one(
            "/alike/key-user",
            RateLimitLayer::by_key("user", super::user_header, quota_per_minute(1)),
        ))
        .service(one(
            "/alike/key-owner",
            RateLimitLayer::by_key("owner", super::user_header, quota_per_minute(1)),
        ))
        .service(lock("/alike/lock", user()).wrap(from_fn(authenticate_by_headers)))
        .service(lock("/alike/other-lock", tenant()).wrap(from_fn(authenticate_by_headers)))
        .service(
            lock("/alike/both-locks", tenant()).wrap(user()).wrap(from_fn(authenticate_by_headers)),
        )
        .service(name("/alike/search", "検索"))
        .service(name("/alike/login", "登録"))
        .service(one(
            "/alike/names",
            two.and(RateLimitLayer::by_ip(quota_per_minute(2)).policy_name("a b")),
        ));
}

/// Authentication that stores the user and the tenant as extensions.
async fn authenticate_by_headers(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let user = request.headers().get("x-user").map(HeaderValue::to_str);
    if let Some(user) = user.map(|user| RequestUser(user.unwrap_or_default().to_owned())) {
        request.extensions_mut().insert(user);
    }
    let tenant = request.headers().get("x-tenant").map(HeaderValue::to_str);
    if let Some(tenant) = tenant.map(|tenant| RequestTenant(tenant.unwrap_or_default().to_owned()))
    {
        request.extensions_mut().insert(tenant);
    }
    next.call(request).await
}

fn access_list_routes(config: &mut ServiceConfig) {
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
    config
        .service(
            resource("/listed/address").to(handle_request).wrap(addresses.access_lists(by_address)),
        )
        .service(resource("/listed/key").to(handle_request).wrap(keys.access_lists(by_key)));
}

fn response_option_routes(config: &mut ServiceConfig) {
    let mut add_route = |path: &str, set: fn(RateLimitLayer) -> RateLimitLayer| {
        let layer =
            set(RateLimitLayer::by_header("x-api-key", quota_per_minute(1))
                .policy_name("header-test"));
        config.service(resource(path).to(handle_request).wrap(layer));
    };
    add_route("/rate-headers/draft", |layer| layer);
    add_route("/rate-headers/legacy", |layer| layer.rate_headers(RateHeaders::Legacy));
    add_route("/rate-headers/both", |layer| layer.rate_headers(RateHeaders::Both).expose_headers());
    add_route("/rate-headers/off", |layer| layer.rate_headers(RateHeaders::Off));
    add_route("/rate-headers/preflights", RateLimitLayer::charge_preflights);
    add_route("/rate-headers/grpc", RateLimitLayer::grpc_refusals);
    add_route("/rate-headers/own", |layer| {
        layer.refusal_response(|refusal| {
            let names: Vec<_> = refusal.violated().map(|policy| policy.name).collect();
            let text = format!("{:?}: {names:?}", refusal.reason());
            Reply::new(420).header("content-type", "text/plain").body(text)
        })
    });
}
