//! Whose request it is: client addresses behind proxies, keys of several parts, lists.

use lockgate_tests::{Answer, Case, Request, Site};

use super::{accepted, lock::busy, quota::refused, wiring::our_fault};

/// Spends a quota of two, and sees that it is spent.
async fn has_two(request: impl Fn() -> Request, name: &str) {
    for _ in 0..2 {
        let _ = request().send().await.expect(200);
    }
    refused(request().send().await, name);
}

async fn is_spent(request: Request) {
    refused(request.send().await, "client");
}

fn forwarded(site: &Site, target: &str, value: &str) -> Request {
    site.get(target).header("x-forwarded-for", value)
}

/// A 400 that names no client.
#[track_caller]
fn untold(answer: Answer) {
    let problem = answer.expect(400).problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:bad-key");
}

pub(crate) async fn a_proxy_is_believed_whom_it_speaks_for(case: Case) {
    let site = case.site().await;
    let from = |value: &str| forwarded(&site, "/client/list", value);
    has_two(|| from("203.0.113.1"), "client").await;
    for same in [
        "203.0.113.1:80",
        "::ffff:203.0.113.1",
        "1.1.1.1, 203.0.113.1",
        "x, 203.0.113.1, 127.0.0.9",
    ] {
        is_spent(from(same)).await;
    }
    // Two lines are one list.
    is_spent(from("1.1.1.1").header("x-forwarded-for", "203.0.113.1")).await;
    // What stands left is the client's own word.
    let _ = from("203.0.113.1, 203.0.113.2").send().await.expect(200);
    has_two(|| from("2001:db8:0:1::1"), "client").await;
    is_spent(from("[2001:DB8:0:1:ffff::2]:443")).await;
    let _ = from("2001:db8:0:2::1").send().await.expect(200);
}

pub(crate) async fn translated_clients_are_told_apart(case: Case) {
    let site = case.site().await;
    let from = |value: &str| forwarded(&site, "/client/list", value);
    // NAT64, under the well-known prefix.
    has_two(|| from("64:ff9b::203.0.113.1"), "client").await;
    is_spent(from("203.0.113.1")).await;
    has_two(|| from("[64:ff9b::cb00:7102]:443"), "client").await;
    // Under a prefix of the network's own.
    has_two(|| from("64:ff9b:1::203.0.113.3"), "client").await;
    has_two(|| from("64:ff9b:1::203.0.113.4"), "client").await;
    let listed = |value| forwarded(&site, "/listed/address", value);
    denied(listed("64:ff9b::203.0.113.5").send().await);
}

pub(crate) async fn nobody_else_is_believed(case: Case) {
    let site = case.site().await;
    let from = |value| forwarded(&site, "/client/stranger", value);
    for value in ["203.0.113.1", "203.0.113.2"] {
        let _ = from(value).send().await.expect(200);
    }
    is_spent(from("203.0.113.3")).await;
    is_spent(site.get("/client/stranger")).await;
}

pub(crate) async fn the_field_is_the_one_that_is_named(case: Case) {
    let site = case.site().await;
    let forged = |target| forwarded(&site, target, "192.0.2.66");
    let told = |value| forged("/client/forwarded").header("forwarded", value);
    has_two(|| told("for=203.0.113.1;proto=https"), "client").await;
    is_spent(told("for=unknown, For=\"203.0.113.1:80\", for=127.0.0.9")).await;
    let _ = told("for=\"[2001:db8::1]\"").send().await.expect(200);
    // Policies of one name are one counter, however the address has come.
    let named = |value| forged("/client/field").header("x-client", value);
    is_spent(named("203.0.113.1")).await;
    let _ = named("203.0.113.7").send().await.expect(200);
    for target in ["/client/forwarded", "/client/field"] {
        untold(forged(target).send().await);
    }
}

pub(crate) async fn hops_are_counted_from_the_right(case: Case) {
    let site = case.site().await;
    let from = |value| forwarded(&site, "/client/hops", value);
    has_two(|| from("1.1.1.1, 203.0.113.1, 198.51.100.7"), "client").await;
    is_spent(from("203.0.113.1, 198.51.100.8")).await;
    let _ = from("203.0.113.1, 203.0.113.2, 203.0.113.1").send().await.expect(200);
    untold(from("203.0.113.1").send().await);
}

pub(crate) async fn whom_nobody_tells_is_refused_or_as_was_said(case: Case) {
    let site = case.site().await;
    for value in ["unknown", "_hidden", "", "203.0.113.1, unknown", "256.0.0.1"] {
        untold(forwarded(&site, "/client/list", value).send().await);
        for _ in 0..3 {
            let answer = forwarded(&site, "/client/skip", value).send().await.expect(200);
            assert!(!answer.has("ratelimit"), "{answer:?}");
        }
    }
    assert_eq!(case.desk.ran().len(), 15);
    has_two(|| site.get("/client/shared"), "client").await;
    is_spent(forwarded(&site, "/client/shared", "unknown")).await;
    let _ = forwarded(&site, "/client/shared", "203.0.113.1").send().await.expect(200);
}

pub(crate) async fn networks_are_as_wide_as_they_are_set(case: Case) {
    let site = case.site().await;
    has_two(|| forwarded(&site, "/client/wide", "2001:db8:0:1::1"), "client").await;
    is_spent(forwarded(&site, "/client/wide", "2001:db8:0:2::1")).await;
    let _ = forwarded(&site, "/client/wide", "2001:db8:1::1").send().await.expect(200);
    let _ = forwarded(&site, "/client/list", "2001:db8:0:1::1").send().await.expect(200);
}

pub(crate) async fn a_lock_can_be_a_clients(case: Case) {
    let site = case.site().await;
    let from = |target, value| site.post(target).header("x-forwarded-for", value);
    let hold = site.hold_with(from("", "203.0.113.1"), "/client/lock").await;
    busy(from("/client/lock", "1.1.1.1, 203.0.113.1").send().await);
    let _ = from("/client/lock", "203.0.113.2").send().await.expect(200);
    untold(from("/client/lock", "unknown").send().await);
    // What runs later is as much of the client as what runs now.
    let job = accepted(from("/client/later", "203.0.113.1").send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

pub(crate) async fn what_a_layer_further_out_knows_is_a_key(case: Case) {
    let site = case.site().await;
    let get = |user| site.get("/by/extension").header("x-user", user);
    has_two(|| get("ada"), "user").await;
    let _ = get("bob").send().await.expect(200);
    our_fault(site.get("/by/extension").send().await);
    let post = |user| site.post("/by/lock").header("x-user", user);
    let hold = site.hold_with(post("ada"), "/by/lock").await;
    busy(post("ada").send().await);
    let _ = post("bob").send().await.expect(200);
    our_fault(site.post("/by/lock").send().await);
    let answer = hold.let_go().await.expect(200);
    assert_eq!(answer.json()["locks"][0][0], "e:user::ada", "{answer:?}");
}

pub(crate) async fn sources_of_different_names_share_no_quota(case: Case) {
    let site = case.site().await;
    let get = |target: &str, who| site.get(target).header("x-user", who).header("x-tenant", who);
    for target in ["/alike/user", "/alike/tenant", "/alike/key-user", "/alike/key-owner"] {
        let _ = get(target, "7").send().await.expect(200);
        refused(get(target, "7").send().await, "default");
        let _ = get(target, "8").send().await.expect(200);
    }
}

pub(crate) async fn sources_of_different_names_share_no_lock(case: Case) {
    let site = case.site().await;
    let post = |target: &str| site.post(target).header("x-user", "7").header("x-tenant", "7");
    let hold = site.hold_with(post(""), "/alike/lock").await;
    busy(post("/alike/lock").send().await);
    let _ = post("/alike/other-lock").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    // A layer inside another one has a lock of its own.
    let hold = site.hold_with(post(""), "/alike/both-locks").await;
    busy(post("/alike/other-lock").send().await);
    let answer = hold.let_go().await.expect(200).json();
    let locks = ["e:user::7", "e:tenant::7"];
    assert_eq!([0, 1].map(|n| &answer["locks"][n][0]), locks, "{answer}");
}

pub(crate) async fn each_part_of_a_key_counts(case: Case) {
    let (site, other) = (case.site().await, case.plan().await.framework(case.framework.other()));
    let other = other.start().await;
    let get = |site: &Site, client, id, key| {
        forwarded(site, &format!("/by/three/{id}"), client).header("x-api-key", key)
    };
    let _ = get(&site, "203.0.113.1", 7, "a").send().await.expect(200);
    let _ = get(&other, "203.0.113.1", 7, "a").send().await.expect(200);
    refused(get(&site, "203.0.113.1", 7, "a").send().await, "three");
    refused(get(&other, "203.0.113.1", 7, "a").send().await, "three");
    for (client, id, key) in
        [("203.0.113.2", 7, "a"), ("203.0.113.1", 8, "a"), ("203.0.113.1", 7, "b")]
    {
        let _ = get(&site, client, id, key).send().await.expect(200);
    }
    let _ = forwarded(&site, "/by/three/7", "203.0.113.1").send().await.expect(400);
    // The lock of a tuple is the one of the same parts, said one by one.
    let of = |tenant, target: &str| site.post(target).header("x-tenant", tenant);
    let hold = site.hold_with(of("a", ""), "/tenant/7").await;
    busy(of("a", "/by/tenant/7").send().await);
    let _ = of("b", "/by/tenant/7").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
}

/// A 403 that promises nothing.
#[track_caller]
fn denied(answer: Answer) {
    let answer = answer.expect(403);
    for field in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(!answer.has(field), "{answer:?}");
    }
    assert_eq!(answer.problem()["type"], "urn:lockgate:problem:denied");
}

#[track_caller]
fn uncounted(answer: Answer) {
    let answer = answer.expect(200);
    assert!(!answer.has("ratelimit"), "{answer:?}");
}

pub(crate) async fn addresses_can_be_let_through_or_denied(case: Case) {
    let site = case.site().await;
    let from = |value| forwarded(&site, "/listed/address", value);
    for _ in 0..4 {
        uncounted(from("198.51.100.77").send().await);
        denied(from("203.0.113.5").send().await);
        denied(from("[::ffff:203.0.113.5]:80").send().await);
    }
    has_two(|| from("192.0.2.1"), "listed").await;
    // Left of what counts nobody gets onto a list, nor off it.
    refused(from("198.51.100.77, 192.0.2.1").send().await, "listed");
    denied(from("198.51.100.77, 203.0.113.5").send().await);
    untold(from("unknown").send().await);
}

pub(crate) async fn keys_can_be_let_through_or_denied(case: Case) {
    let site = case.site().await;
    let with = |key| site.get("/listed/key").header("x-api-key", key);
    for _ in 0..4 {
        uncounted(with("free").send().await);
        denied(with("stolen").send().await);
    }
    has_two(|| with("other"), "listed").await;
    let ours = |request: Request| request.header("x-client", "127.0.0.1").send();
    uncounted(ours(with("other")).await);
    uncounted(ours(site.get("/listed/key")).await);
    // Who is on both lists is denied.
    denied(ours(with("stolen")).await);
    let _ = site.get("/listed/key").send().await.expect(400);
}
