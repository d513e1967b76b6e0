//! Headers that report the quota to clients.

use lockgate_tests::{TestCase, TestRequest, TestResponse};

use super::quota::{expect_quota_exceeded, list_members};

const DRAFT_HEADERS: [&str; 2] = ["ratelimit-policy", "ratelimit"];
const LEGACY_HEADERS: [&str; 3] =
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// Expects exactly these rate headers, each once.
#[track_caller]
fn assert_rate_headers(answer: &TestResponse, fields: &[&str]) {
    for field in DRAFT_HEADERS.iter().chain(&LEGACY_HEADERS) {
        assert_eq!(answer.has_header(field), fields.contains(field), "{field}: {answer:?}");
        if fields.contains(field) {
            let _ = answer.header(field);
        }
    }
}

/// Sends an admitted request and the next one, which is refused.
async fn send_admitted_and_refused(request: impl Fn() -> TestRequest) -> [TestResponse; 2] {
    [request().send().await.expect_status(200), request().send().await]
}

#[track_caller]
fn assert_legacy_values(answer: &TestResponse) {
    let number = |name: &str| answer.header(name).parse::<u64>().expect("a number");
    assert_eq!([number(LEGACY_HEADERS[0]), number(LEGACY_HEADERS[1])], [1, 0], "{answer:?}");
    // Relative seconds, not a date.
    assert!((1..=60).contains(&number(LEGACY_HEADERS[2])), "{answer:?}");
}

pub(crate) async fn configured_rate_headers_are_sent(case: TestCase) {
    let site = case.start_site().await;
    let get = |target| site.get(target).header("x-api-key", target);
    for answer in send_admitted_and_refused(|| get("/rate-headers/draft")).await {
        assert_rate_headers(&answer, &DRAFT_HEADERS);
        assert!(!answer.has_header("access-control-expose-headers"), "{answer:?}");
    }
    for answer in send_admitted_and_refused(|| get("/rate-headers/legacy")).await {
        assert_rate_headers(&answer, &LEGACY_HEADERS);
        assert_legacy_values(&answer);
    }
    for answer in send_admitted_and_refused(|| get("/rate-headers/off")).await {
        assert_rate_headers(&answer, &[]);
        assert_eq!(answer.has_header("retry-after"), answer.status == 429, "{answer:?}");
    }
}

pub(crate) async fn rate_headers_are_exposed_to_other_origins(case: TestCase) {
    let site = case.start_site().await;
    let get = || {
        site.get("/rate-headers/both")
            .header("x-api-key", "a")
            .header("origin", "https://a.example")
    };
    for answer in send_admitted_and_refused(get).await {
        assert_rate_headers(&answer, &[&DRAFT_HEADERS[..], &LEGACY_HEADERS].concat());
        assert_legacy_values(&answer);
        let exposed = answer.header_list("access-control-expose-headers").to_ascii_lowercase();
        for field in DRAFT_HEADERS.iter().chain(&LEGACY_HEADERS).chain(&["retry-after"]) {
            assert!(exposed.split(", ").any(|name| name == *field), "{field}: {answer:?}");
        }
        if answer.status != 200 {
            expect_quota_exceeded(answer, "header-test");
        }
    }
}

pub(crate) async fn preflight_is_not_charged(case: TestCase) {
    let site = case.start_site().await;
    let options = |target| site.request("OPTIONS", target).header("origin", "https://a.example");
    let preflight = |target| options(target).header("access-control-request-method", "POST");
    for _ in 0..3 {
        // A preflight carries no API key.
        let answer = preflight("/rate-headers/draft").send().await.expect_status(200);
        assert_rate_headers(&answer, &[]);
    }
    // OPTIONS without `Access-Control-Request-Method` is no preflight, nor is another method.
    let _ = options("/rate-headers/draft").send().await.expect_status(400);
    let get = site.get("/rate-headers/draft").header("origin", "https://a.example");
    let _ = get.header("access-control-request-method", "POST").send().await.expect_status(400);
    let charged = || preflight("/rate-headers/preflights").header("x-api-key", "a");
    let [first, second] = send_admitted_and_refused(charged).await;
    assert_eq!(list_members(&first, "ratelimit")[0].1, 0, "{first:?}");
    expect_quota_exceeded(second, "header-test");
}

pub(crate) async fn custom_refusal_response_is_sent(case: TestCase) {
    let site = case.start_site().await;
    let [_, answer] =
        send_admitted_and_refused(|| site.get("/rate-headers/own").header("x-api-key", "a")).await;
    let answer = answer.expect_status(420);
    assert_eq!(
        (answer.header("content-type"), &*answer.text()),
        ("text/plain", "QuotaExceeded: [\"header-test\"]")
    );
    assert_rate_headers(&answer, &[]);
}

pub(crate) async fn grpc_refusal_response_is_sent(case: TestCase) {
    let site = case.start_site().await;
    let [_, answer] =
        send_admitted_and_refused(|| site.post("/rate-headers/grpc").header("x-api-key", "a"))
            .await;
    let answer = answer.expect_status(200);
    assert_eq!(answer.header("content-type"), "application/grpc");
    assert_eq!(answer.header("grpc-status"), "8", "RESOURCE_EXHAUSTED");
    assert!(answer.body.is_empty(), "{answer:?}");
    assert!((1..=60).contains(&answer.retry_after_seconds()), "{answer:?}");
    assert_rate_headers(&answer, &DRAFT_HEADERS);
    assert_eq!(case.handler.completed_runs().len(), 1);
}
