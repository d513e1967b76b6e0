//! What clients are told of their quota, and how.

use lockgate_tests::{Answer, Case, Request};

use super::quota::{members, refused};

const DRAFT: [&str; 2] = ["ratelimit-policy", "ratelimit"];
const LEGACY: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// Has these of all the fields about quotas, each once.
#[track_caller]
fn has(answer: &Answer, fields: &[&str]) {
    for field in DRAFT.iter().chain(&LEGACY) {
        assert_eq!(answer.has(field), fields.contains(field), "{field}: {answer:?}");
        if fields.contains(field) {
            let _ = answer.field(field);
        }
    }
}

/// What is told of a request that is let in, and of the next, which is refused.
async fn both(request: impl Fn() -> Request) -> [Answer; 2] {
    [request().send().await.expect(200), request().send().await]
}

#[track_caller]
fn legacy(answer: &Answer) {
    let number = |name: &str| answer.field(name).parse::<u64>().expect("a number");
    assert_eq!([number(LEGACY[0]), number(LEGACY[1])], [1, 0], "{answer:?}");
    // Seconds from now, and no date.
    assert!((1..=60).contains(&number(LEGACY[2])), "{answer:?}");
}

pub(crate) async fn the_fields_are_those_of_choice(case: Case) {
    let site = case.site().await;
    let get = |target| site.get(target).header("x-api-key", target);
    for answer in both(|| get("/told/draft")).await {
        has(&answer, &DRAFT);
        assert!(!answer.has("access-control-expose-headers"), "{answer:?}");
    }
    for answer in both(|| get("/told/legacy")).await {
        has(&answer, &LEGACY);
        legacy(&answer);
    }
    for answer in both(|| get("/told/off")).await {
        has(&answer, &[]);
        assert_eq!(answer.has("retry-after"), answer.status == 429, "{answer:?}");
    }
}

pub(crate) async fn other_origins_may_read_them(case: Case) {
    let site = case.site().await;
    let get =
        || site.get("/told/both").header("x-api-key", "a").header("origin", "https://a.example");
    for answer in both(get).await {
        has(&answer, &[&DRAFT[..], &LEGACY].concat());
        legacy(&answer);
        let exposed = answer.list("access-control-expose-headers").to_ascii_lowercase();
        for field in DRAFT.iter().chain(&LEGACY).chain(&["retry-after"]) {
            assert!(exposed.split(", ").any(|name| name == *field), "{field}: {answer:?}");
        }
        if answer.status != 200 {
            refused(answer, "told");
        }
    }
}

pub(crate) async fn a_preflight_is_not_charged(case: Case) {
    let site = case.site().await;
    let options = |target| site.request("OPTIONS", target).header("origin", "https://a.example");
    let preflight = |target| options(target).header("access-control-request-method", "POST");
    for _ in 0..3 {
        // It has no API key either.
        let answer = preflight("/told/draft").send().await.expect(200);
        has(&answer, &[]);
    }
    // Without the field it is none, nor is it with another method.
    let _ = options("/told/draft").send().await.expect(400);
    let get = site.get("/told/draft").header("origin", "https://a.example");
    let _ = get.header("access-control-request-method", "POST").send().await.expect(400);
    let charged = || preflight("/told/preflights").header("x-api-key", "a");
    let [first, second] = both(charged).await;
    assert_eq!(members(&first, "ratelimit")[0].1, 0, "{first:?}");
    refused(second, "told");
}

pub(crate) async fn the_answer_can_be_ones_own(case: Case) {
    let site = case.site().await;
    let [_, answer] = both(|| site.get("/told/own").header("x-api-key", "a")).await;
    let answer = answer.expect(420);
    assert_eq!(
        (answer.field("content-type"), &*answer.text()),
        ("text/plain", "QuotaExceeded: [\"told\"]")
    );
    has(&answer, &[]);
}

pub(crate) async fn the_answer_can_be_grpcs(case: Case) {
    let site = case.site().await;
    let [_, answer] = both(|| site.post("/told/grpc").header("x-api-key", "a")).await;
    let answer = answer.expect(200);
    assert_eq!(answer.field("content-type"), "application/grpc");
    assert_eq!(answer.field("grpc-status"), "8", "RESOURCE_EXHAUSTED");
    assert!(answer.body.is_empty(), "{answer:?}");
    assert!((1..=60).contains(&answer.retry_after()), "{answer:?}");
    has(&answer, &DRAFT);
    assert_eq!(case.desk.ran().len(), 1);
}
