//! Routes whose limits have keys, lists and answers of their own.

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
    super::{LOCAL, Tenant, User},
    minute,
    policies::locked,
    work,
};

pub(super) fn rates(config: &mut ServiceConfig) {
    clients(config);
    keys(config);
    alike(config);
    lists(config);
    answers(config);
}

fn behind() -> ClientAddress {
    ClientAddress::behind_proxies([LOCAL])
}

fn clients(config: &mut ServiceConfig) {
    let mut client = |path: &str, address| {
        let layer = RateLimitLayer::by_client(address, minute(2)).policy_name("client");
        config.service(resource(path).to(work).wrap(layer));
    };
    client("/client/list", behind());
    client("/client/forwarded", behind().forwarded_header());
    client("/client/field", behind().header("X-Client"));
    client("/client/hops", ClientAddress::behind_hops(2));
    client("/client/stranger", ClientAddress::behind_proxies(["192.0.2.0/24"]));
    client("/client/skip", behind().on_missing(MissingAddress::Skip));
    client("/client/shared", behind().on_missing(MissingAddress::Shared));
    client("/client/wide", behind().ipv6_prefix(48));
    let lock = |path| resource(path).to(work).wrap(LockLayer::by_client(behind()));
    config.service(lock("/client/lock")).service(lock("/client/later").wrap(DeferLayer::new()));
}

fn keys(config: &mut ServiceConfig) {
    let three =
        (KeyPart::client(behind()), KeyPart::path_param("id"), KeyPart::header("x-api-key"));
    let three = RateLimitLayer::by(three, minute(2)).policy_name("three");
    let user = RateLimitLayer::by_extension::<User>("user", minute(2)).policy_name("user");
    let lock = |path: &str, layer: LockLayer| resource(path).to(locked).wrap(layer);
    let tenant = LockLayer::by((KeyPart::path_param("id"), KeyPart::header("x-tenant")));
    config
        .service(resource("/by/extension").to(work).wrap(user).wrap(from_fn(know)))
        .service(resource("/by/three/{id}").to(work).wrap(three))
        .service(lock("/by/lock", LockLayer::by_extension::<User>("user")).wrap(from_fn(know)))
        .service(lock("/by/tenant/{id}", tenant));
}

/// Sources whose values may be the same text, and policies whose names are alike.
fn alike(config: &mut ServiceConfig) {
    let user = || LockLayer::by_extension::<User>("user");
    let tenant = || LockLayer::by_extension::<Tenant>("tenant");
    let one = |path: &str, layer: RateLimitLayer| resource(path).to(work).wrap(layer);
    let lock = |path: &str, layer: LockLayer| resource(path).to(locked).wrap(layer);
    let name =
        |path: &str, name: &str| one(path, RateLimitLayer::by_ip(minute(1)).policy_name(name));
    let by_user = RateLimitLayer::by_extension::<User>("user", minute(1));
    let by_tenant = RateLimitLayer::by_extension::<Tenant>("tenant", minute(1));
    let two = RateLimitLayer::by_ip(minute(1)).policy_name("a/b");
    config
        .service(one("/alike/user", by_user).wrap(from_fn(know)))
        .service(one("/alike/tenant", by_tenant).wrap(from_fn(know)))
        .service(one("/alike/key-user", RateLimitLayer::by_key("user", super::user, minute(1))))
        .service(one("/alike/key-owner", RateLimitLayer::by_key("owner", super::user, minute(1))))
        .service(lock("/alike/lock", user()).wrap(from_fn(know)))
        .service(lock("/alike/other-lock", tenant()).wrap(from_fn(know)))
        .service(lock("/alike/both-locks", tenant()).wrap(user()).wrap(from_fn(know)))
        .service(name("/alike/search", "検索"))
        .service(name("/alike/login", "登録"))
        .service(one("/alike/names", two.and(RateLimitLayer::by_ip(minute(2)).policy_name("a b"))));
}

/// What an authentication does.
async fn know(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let user = request.headers().get("x-user").map(HeaderValue::to_str);
    if let Some(user) = user.map(|user| User(user.unwrap_or_default().to_owned())) {
        request.extensions_mut().insert(user);
    }
    let tenant = request.headers().get("x-tenant").map(HeaderValue::to_str);
    if let Some(tenant) = tenant.map(|tenant| Tenant(tenant.unwrap_or_default().to_owned())) {
        request.extensions_mut().insert(tenant);
    }
    next.call(request).await
}

fn lists(config: &mut ServiceConfig) {
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
    config
        .service(resource("/listed/address").to(work).wrap(addresses.access_lists(by_address)))
        .service(resource("/listed/key").to(work).wrap(keys.access_lists(by_key)));
}

fn answers(config: &mut ServiceConfig) {
    let mut told = |path: &str, set: fn(RateLimitLayer) -> RateLimitLayer| {
        let layer = set(RateLimitLayer::by_header("x-api-key", minute(1)).policy_name("told"));
        config.service(resource(path).to(work).wrap(layer));
    };
    told("/told/draft", |layer| layer);
    told("/told/legacy", |layer| layer.rate_headers(RateHeaders::Legacy));
    told("/told/both", |layer| layer.rate_headers(RateHeaders::Both).expose_headers());
    told("/told/off", |layer| layer.rate_headers(RateHeaders::Off));
    told("/told/preflights", RateLimitLayer::charge_preflights);
    told("/told/grpc", RateLimitLayer::grpc_refusals);
    told("/told/own", |layer| {
        layer.refusal_response(|refusal| {
            let names: Vec<_> = refusal.violated().map(|policy| policy.name).collect();
            let text = format!("{:?}: {names:?}", refusal.reason());
            Reply::new(420).header("content-type", "text/plain").body(text)
        })
    });
}
