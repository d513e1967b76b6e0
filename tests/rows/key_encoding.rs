//! Path values in unusual encodings: each names one lock, the same one in both frameworks.

use lockgate_tests::{TestCase, TestSite, WebFramework};

use super::{lock::expect_busy, response_fence};

async fn start_both_frameworks(case: &TestCase) -> (TestSite, TestSite) {
    let other = case.site_builder().await.framework(case.framework.other());
    (case.start_site().await, other.start().await)
}

fn pay_target(value: &str) -> String {
    format!("/orders/{value}/pay")
}

pub(crate) async fn equal_values_share_a_lock_in_both_frameworks(case: TestCase) {
    let (site, other_site) = start_both_frameworks(&case).await;
    let long = "x".repeat(10_000);
    let spellings = [
        ("7", "%37"),
        ("a%2Fb", "a%2fb"),
        ("%00", "%00"),
        ("%20", "%20"),
        ("a+b", "a%2Bb"),
        ("%C3%A4", "%c3%a4"),
        ("a%25b", "%61%25b"),
        ("%252F", "%252F"),
        ("a:b", "a%3Ab"),
        ("~", "%7E"),
        ("*", "%2A"),
        ("%7B1%7D", "%7B1%7D"),
        ("..;", "%2E.;"),
        (&long, &long),
    ];
    for (one, other) in spellings {
        let hold = site.post_held(&pay_target(one)).await;
        expect_busy(site.post(&pay_target(other)).send().await);
        expect_busy(other_site.post(&pay_target(one)).send().await);
        expect_busy(other_site.post(&pay_target(other)).send().await);
        let _ = hold.finish().await.expect_status(200);
        let _ = other_site.post(&pay_target(other)).send().await.expect_status(200);
    }
}

pub(crate) async fn different_values_have_different_locks(case: TestCase) {
    let (site, other_site) = start_both_frameworks(&case).await;
    let long = "x".repeat(10_000);
    let (longer, hashed) = (format!("{long}x"), "~5994471abb01112afcc18159f6cc74b4");
    let values = [
        "a%2Fb", "a%252Fb", "a%20b", "a+b", "a%2520b", "A%2Fb", "%00", "0", "%C3%A4", "a%CC%88",
        &long, &longer, hashed, "*", "7", "07", "+7", "7%20",
    ];
    let mut holds = Vec::new();
    for (n, value) in values.into_iter().enumerate() {
        let site = if n % 2 == 0 { &site } else { &other_site };
        holds.push(site.post_held(&pay_target(value)).await);
    }
    for hold in holds {
        let _ = hold.finish().await.expect_status(200);
    }
}

/// A handler that parses a number sees equal values, so they share one key.
pub(crate) async fn number_is_one_key_in_every_spelling(case: TestCase) {
    let (site, other_site) = start_both_frameworks(&case).await;
    let spellings = ["7", "07", "+7", "%2B7"];
    // The key is the canonical text of the number.
    let hold = site.post_held(&pay_target("7")).await;
    for spelt in spellings {
        for site in [&site, &other_site] {
            expect_busy(site.post(&format!("/numbers/{spelt}")).send().await);
            expect_busy(site.post(&format!("/numbers/{spelt}/8")).send().await);
            expect_busy(site.post(&format!("/numbers/8/{spelt}")).send().await);
        }
    }
    let _ = site.post("/numbers/8").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    let hold = site.post_held("/number-of/a/7").await;
    for spelt in spellings {
        expect_busy(other_site.post(&format!("/number-of/a/{spelt}")).send().await);
        let _ = other_site.post(&format!("/number-of/b/{spelt}")).send().await.expect_status(200);
    }
    let _ = hold.finish().await.expect_status(200);
    for route in ["number", "number-key"] {
        for (spelt, status) in spellings.into_iter().zip([200, 200, 429, 429]) {
            let answer = site.get(&format!("/quota/{route}/{spelt}")).send().await;
            let _ = answer.expect_status(status);
        }
    }
    for odd in ["x", "-7", "7.0", "%207", "18446744073709551616"] {
        for route in ["numbers", "numbers/7", "number-of/a", "quota/number"] {
            let _ = site
                .post(&format!("/{route}/{odd}"))
                .send()
                .await
                .expect_status(400)
                .problem_document();
        }
    }
}

pub(crate) async fn invalid_utf8_values_are_refused(case: TestCase) {
    let (site, other_site) = start_both_frameworks(&case).await;
    for value in ["%ff", "a%C3", "%C3%28", "%ED%A0%80"] {
        for site in [&site, &other_site] {
            let _ =
                site.post(&pay_target(value)).send().await.expect_status(400).problem_document();
        }
    }
    let _ = site.get("/quota/param/%ff").send().await.expect_status(400).problem_document();
    assert_eq!(case.handler.completed_runs().len(), 0);
}

pub(crate) async fn handlers_of_both_frameworks_see_the_same_value(case: TestCase) {
    let (site, other_site) = start_both_frameworks(&case).await;
    for (sent, seen) in [
        ("a%2Fb", "a/b"),
        ("%00", "\0"),
        ("a%20b", "a b"),
        ("a+b", "a+b"),
        ("%C3%A4", "ä"),
        ("a%25b", "a%b"),
    ] {
        for site in [&site, &other_site] {
            let answer = site.post(&pay_target(sent)).send().await.expect_status(200);
            assert_eq!(answer.json()["id"], seen, "{answer:?}");
        }
    }
}

/// Routers differ for an empty value: axum matches it, actix-web does not.
pub(crate) async fn empty_value_does_not_bypass_the_lock(case: TestCase) {
    let site = case.start_site().await;
    let answer = site.post("/orders//pay").send().await;
    match case.framework {
        WebFramework::Actix => {
            let _ = answer.expect_status(404);
            assert_eq!(case.handler.completed_runs().len(), 0);
        }
        WebFramework::Axum => {
            let _ = response_fence(&answer.expect_status(200));
            let hold = site.post_held("/orders//pay").await;
            expect_busy(site.post("/orders//pay").send().await);
            let _ = hold.finish().await.expect_status(200);
        }
    }
}
