//! Identity of clients: addresses behind proxies, keys of several parts, access lists.

use lockgate_tests::{TestCase, TestRequest, TestResponse, TestSite};

use super::{
    expect_accepted, lock::expect_busy, misconfiguration::expect_server_error,
    quota::expect_quota_exceeded,
};

/// Spends a quota of two and expects a refusal of the next request.
async fn assert_quota_of_two(request: impl Fn() -> TestRequest, name: &str) {
    for _ in 0..2 {
        let _ = request().send().await.expect_status(200);
    }
    expect_quota_exceeded(request().send().await, name);
}

async fn assert_quota_spent(request: TestRequest) {
    expect_quota_exceeded(request.send().await, "client");
}

fn get_forwarded(site: &TestSite, target: &str, value: &str) -> TestRequest {
    site.get(target).header("x-forwarded-for", value)
}

/// Expects a 400 problem document for a request whose client is not identified.
#[track_caller]
fn assert_unidentified(answer: TestResponse) {
    let problem = answer.expect_status(400).problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:bad-key");
}

pub(crate) async fn trusted_proxy_names_the_client(case: TestCase) {
    let site = case.start_site().await;
    let from = |value: &str| get_forwarded(&site, "/client/list", value);
    assert_quota_of_two(|| from("203.0.113.1"), "client").await;
    for same in [
        "203.0.113.1:80",
        "::ffff:203.0.113.1",
        "1.1.1.1, 203.0.113.1",
        "x, 203.0.113.1, 127.0.0.9",
    ] {
        assert_quota_spent(from(same)).await;
    }
    // Two header lines form one list.
    assert_quota_spent(from("1.1.1.1").header("x-forwarded-for", "203.0.113.1")).await;
    // Entries to the left of the trusted hops are set by the client and ignored.
    let _ = from("203.0.113.1, 203.0.113.2").send().await.expect_status(200);
    assert_quota_of_two(|| from("2001:db8:0:1::1"), "client").await;
    assert_quota_spent(from("[2001:DB8:0:1:ffff::2]:443")).await;
    let _ = from("2001:db8:0:2::1").send().await.expect_status(200);
}

pub(crate) async fn nat64_addresses_map_to_their_clients(case: TestCase) {
    let site = case.start_site().await;
    let from = |value: &str| get_forwarded(&site, "/client/list", value);
    // NAT64 address under the well-known prefix.
    assert_quota_of_two(|| from("64:ff9b::203.0.113.1"), "client").await;
    assert_quota_spent(from("203.0.113.1")).await;
    assert_quota_of_two(|| from("[64:ff9b::cb00:7102]:443"), "client").await;
    // NAT64 addresses under a network-specific prefix.
    assert_quota_of_two(|| from("64:ff9b:1::203.0.113.3"), "client").await;
    assert_quota_of_two(|| from("64:ff9b:1::203.0.113.4"), "client").await;
    let listed = |value| get_forwarded(&site, "/listed/address", value);
    assert_denied(listed("64:ff9b::203.0.113.5").send().await);
}

pub(crate) async fn untrusted_peer_cannot_name_the_client(case: TestCase) {
    let site = case.start_site().await;
    let from = |value| get_forwarded(&site, "/client/stranger", value);
    for value in ["203.0.113.1", "203.0.113.2"] {
        let _ = from(value).send().await.expect_status(200);
    }
    assert_quota_spent(from("203.0.113.3")).await;
    assert_quota_spent(site.get("/client/stranger")).await;
}

pub(crate) async fn only_configured_client_header_is_read(case: TestCase) {
    let site = case.start_site().await;
    let forged = |target| get_forwarded(&site, target, "192.0.2.66");
    let with_forwarded = |value| forged("/client/forwarded").header("forwarded", value);
    assert_quota_of_two(|| with_forwarded("for=203.0.113.1;proto=https"), "client").await;
    assert_quota_spent(with_forwarded("for=unknown, For=\"203.0.113.1:80\", for=127.0.0.9")).await;
    let _ = with_forwarded("for=\"[2001:db8::1]\"").send().await.expect_status(200);
    // Policies of one name share a counter, whichever header carries the address.
    let with_client_header = |value| forged("/client/field").header("x-client", value);
    assert_quota_spent(with_client_header("203.0.113.1")).await;
    let _ = with_client_header("203.0.113.7").send().await.expect_status(200);
    for target in ["/client/forwarded", "/client/field"] {
        assert_unidentified(forged(target).send().await);
    }
}

pub(crate) async fn trusted_hops_count_from_the_right(case: TestCase) {
    let site = case.start_site().await;
    let from = |value| get_forwarded(&site, "/client/hops", value);
    assert_quota_of_two(|| from("1.1.1.1, 203.0.113.1, 198.51.100.7"), "client").await;
    assert_quota_spent(from("203.0.113.1, 198.51.100.8")).await;
    let _ = from("203.0.113.1, 203.0.113.2, 203.0.113.1").send().await.expect_status(200);
    assert_unidentified(from("203.0.113.1").send().await);
}

pub(crate) async fn unidentified_client_follows_the_configured_policy(case: TestCase) {
    let site = case.start_site().await;
    for value in ["unknown", "_hidden", "", "203.0.113.1, unknown", "256.0.0.1"] {
        assert_unidentified(get_forwarded(&site, "/client/list", value).send().await);
        for _ in 0..3 {
            let answer =
                get_forwarded(&site, "/client/skip", value).send().await.expect_status(200);
            assert!(!answer.has_header("ratelimit"), "{answer:?}");
        }
    }
    assert_eq!(case.handler.completed_runs().len(), 15);
    assert_quota_of_two(|| site.get("/client/shared"), "client").await;
    assert_quota_spent(get_forwarded(&site, "/client/shared", "unknown")).await;
    let _ = get_forwarded(&site, "/client/shared", "203.0.113.1").send().await.expect_status(200);
}

pub(crate) async fn ipv6_clients_are_grouped_by_prefix_length(case: TestCase) {
    let site = case.start_site().await;
    assert_quota_of_two(|| get_forwarded(&site, "/client/wide", "2001:db8:0:1::1"), "client").await;
    assert_quota_spent(get_forwarded(&site, "/client/wide", "2001:db8:0:2::1")).await;
    let _ = get_forwarded(&site, "/client/wide", "2001:db8:1::1").send().await.expect_status(200);
    let _ = get_forwarded(&site, "/client/list", "2001:db8:0:1::1").send().await.expect_status(200);
}

pub(crate) async fn lock_can_be_keyed_by_client_address(case: TestCase) {
    let site = case.start_site().await;
    let from = |target, value| site.post(target).header("x-forwarded-for", value);
    let hold = site.send_held(from("", "203.0.113.1"), "/client/lock").await;
    expect_busy(from("/client/lock", "1.1.1.1, 203.0.113.1").send().await);
    let _ = from("/client/lock", "203.0.113.2").send().await.expect_status(200);
    assert_unidentified(from("/client/lock", "unknown").send().await);
    // Direct and deferred requests of one address share the lock.
    let job = expect_accepted(from("/client/later", "203.0.113.1").send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
}

pub(crate) async fn request_extension_can_be_the_key(case: TestCase) {
    let site = case.start_site().await;
    let get = |user| site.get("/by/extension").header("x-user", user);
    assert_quota_of_two(|| get("ada"), "user").await;
    let _ = get("bob").send().await.expect_status(200);
    expect_server_error(site.get("/by/extension").send().await);
    let post = |user| site.post("/by/lock").header("x-user", user);
    let hold = site.send_held(post("ada"), "/by/lock").await;
    expect_busy(post("ada").send().await);
    let _ = post("bob").send().await.expect_status(200);
    expect_server_error(site.post("/by/lock").send().await);
    let answer = hold.finish().await.expect_status(200);
    assert_eq!(answer.json()["locks"][0][0], "e:user::ada", "{answer:?}");
}

pub(crate) async fn key_sources_with_different_names_share_no_quota(case: TestCase) {
    let site = case.start_site().await;
    let get = |target: &str, id| site.get(target).header("x-user", id).header("x-tenant", id);
    for target in ["/alike/user", "/alike/tenant", "/alike/key-user", "/alike/key-owner"] {
        let _ = get(target, "7").send().await.expect_status(200);
        expect_quota_exceeded(get(target, "7").send().await, "1-per-60s");
        let _ = get(target, "8").send().await.expect_status(200);
    }
}

pub(crate) async fn key_sources_with_different_names_share_no_lock(case: TestCase) {
    let site = case.start_site().await;
    let post = |target: &str| site.post(target).header("x-user", "7").header("x-tenant", "7");
    let hold = site.send_held(post(""), "/alike/lock").await;
    expect_busy(post("/alike/lock").send().await);
    let _ = post("/alike/other-lock").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    // Nested layers have separate locks.
    let hold = site.send_held(post(""), "/alike/both-locks").await;
    expect_busy(post("/alike/other-lock").send().await);
    let answer = hold.finish().await.expect_status(200).json();
    let locks = ["e:user::7", "e:tenant::7"];
    assert_eq!([0, 1].map(|n| &answer["locks"][n][0]), locks, "{answer}");
}

pub(crate) async fn composite_keys_differ_in_each_part(case: TestCase) {
    let (site, other) =
        (case.start_site().await, case.site_builder().await.framework(case.framework.other()));
    let other = other.start().await;
    let get = |site: &TestSite, client, id, key| {
        get_forwarded(site, &format!("/by/three/{id}"), client).header("x-api-key", key)
    };
    let _ = get(&site, "203.0.113.1", 7, "a").send().await.expect_status(200);
    let _ = get(&other, "203.0.113.1", 7, "a").send().await.expect_status(200);
    expect_quota_exceeded(get(&site, "203.0.113.1", 7, "a").send().await, "three");
    expect_quota_exceeded(get(&other, "203.0.113.1", 7, "a").send().await, "three");
    for (client, id, key) in
        [("203.0.113.2", 7, "a"), ("203.0.113.1", 8, "a"), ("203.0.113.1", 7, "b")]
    {
        let _ = get(&site, client, id, key).send().await.expect_status(200);
    }
    let _ = get_forwarded(&site, "/by/three/7", "203.0.113.1").send().await.expect_status(400);
    // A tuple key equals the key of the same parts given one by one.
    let post_for_tenant = |tenant, target: &str| site.post(target).header("x-tenant", tenant);
    let hold = site.send_held(post_for_tenant("a", ""), "/tenant/7").await;
    expect_busy(post_for_tenant("a", "/by/tenant/7").send().await);
    let _ = post_for_tenant("b", "/by/tenant/7").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
}

/// Expects a 403 without `Retry-After`.
#[track_caller]
fn assert_denied(answer: TestResponse) {
    let answer = answer.expect_status(403);
    for field in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(!answer.has_header(field), "{answer:?}");
    }
    assert_eq!(answer.problem_document()["type"], "urn:lockgate:problem:denied");
}

#[track_caller]
fn assert_not_counted(answer: TestResponse) {
    let answer = answer.expect_status(200);
    assert!(!answer.has_header("ratelimit"), "{answer:?}");
}

pub(crate) async fn addresses_can_be_allowed_or_denied(case: TestCase) {
    let site = case.start_site().await;
    let from = |value| get_forwarded(&site, "/listed/address", value);
    for _ in 0..4 {
        assert_not_counted(from("198.51.100.77").send().await);
        assert_denied(from("203.0.113.5").send().await);
        assert_denied(from("[::ffff:203.0.113.5]:80").send().await);
    }
    assert_quota_of_two(|| from("192.0.2.1"), "listed").await;
    // Entries to the left of the trusted hops neither allow nor deny a client.
    expect_quota_exceeded(from("198.51.100.77, 192.0.2.1").send().await, "listed");
    assert_denied(from("198.51.100.77, 203.0.113.5").send().await);
    assert_unidentified(from("unknown").send().await);
}

pub(crate) async fn keys_can_be_allowed_or_denied(case: TestCase) {
    let site = case.start_site().await;
    let with = |key| site.get("/listed/key").header("x-api-key", key);
    for _ in 0..4 {
        assert_not_counted(with("free").send().await);
        assert_denied(with("stolen").send().await);
    }
    assert_quota_of_two(|| with("other"), "listed").await;
    let send_with_forged_client =
        |request: TestRequest| request.header("x-client", "127.0.0.1").send();
    assert_not_counted(send_with_forged_client(with("other")).await);
    assert_not_counted(send_with_forged_client(site.get("/listed/key")).await);
    // A client on both lists is denied.
    assert_denied(send_with_forged_client(with("stolen")).await);
    let _ = site.get("/listed/key").send().await.expect_status(400);
}
