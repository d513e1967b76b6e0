//! Access lists of a layer with several policies.

use super::{
    gate_requests::{TestRateLimitLayer, gate_by_header, new_request},
    named_policy, per_minute,
};
use crate::{
    AccessLists, ClientAddress, Key,
    gate::{Gate, InitialVerdict, KeySource},
    store::Store,
};

/// Lists apply to the keys of all policies, and to the address of the policy that has one.
#[tokio::test(start_paused = true)]
async fn access_lists_apply_to_the_keys_of_all_policies() {
    let client = KeySource::client(ClientAddress::behind_proxies(["10.0.0.0/8"]));
    let lists =
        AccessLists::new().allow(["10.0.0.0/8", "192.0.2.7"]).deny_key(Key::header("b", b"2"));
    let limit = |other: &str| {
        let client = TestRateLimitLayer::by(client.clone(), named_policy("client", per_minute(5)));
        let limit = gate_by_header("a", per_minute(5))
            .and(client)
            .and(gate_by_header(other, named_policy("other", per_minute(5))));
        limit.access_lists(lists.clone()).store(&Store::memory())
    };
    let from = |address: &'static str| {
        let mut view = new_request();
        view.peer_addr = Some("10.0.0.1:80".parse().unwrap());
        view.headers.push(("x-forwarded-for", address));
        view
    };
    let inspect = |other, address| limit(other).inspect(&mut from(address));
    assert!(matches!(inspect("cost", "192.0.2.7"), InitialVerdict::Skip));
    assert!(
        matches!(inspect("cost", "192.0.2.8"), InitialVerdict::Enter(_)),
        "the proxy is not the client"
    );
    assert!(
        matches!(inspect("b", "192.0.2.7"), InitialVerdict::Answer(reply) if reply.status == 403)
    );
}
