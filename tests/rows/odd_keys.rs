//! Values that are written strangely: each is one lock, and the same one in both frameworks.

use lockgate_tests::{Case, Framework, Site};

use super::{fence, lock::busy};

async fn both(case: &Case) -> (Site, Site) {
    let other = case.plan().await.framework(case.framework.other());
    (case.site().await, other.start().await)
}

fn pay(value: &str) -> String {
    format!("/orders/{value}/pay")
}

pub(crate) async fn one_value_is_one_lock_in_both_frameworks(case: Case) {
    let (here, there) = both(&case).await;
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
        let hold = here.hold(&pay(one)).await;
        busy(here.post(&pay(other)).send().await);
        busy(there.post(&pay(one)).send().await);
        busy(there.post(&pay(other)).send().await);
        let _ = hold.let_go().await.expect(200);
        let _ = there.post(&pay(other)).send().await.expect(200);
    }
}

pub(crate) async fn different_values_are_different_locks(case: Case) {
    let (here, there) = both(&case).await;
    let long = "x".repeat(10_000);
    let (longer, hashed) = (format!("{long}x"), "~5994471abb01112afcc18159f6cc74b4");
    let values = [
        "a%2Fb", "a%252Fb", "a%20b", "a+b", "a%2520b", "A%2Fb", "%00", "0", "%C3%A4", "a%CC%88",
        &long, &longer, hashed, "*", "7", "07", "+7", "7%20",
    ];
    let mut holds = Vec::new();
    for (n, value) in values.into_iter().enumerate() {
        let site = if n % 2 == 0 { &here } else { &there };
        holds.push(site.hold(&pay(value)).await);
    }
    for hold in holds {
        let _ = hold.let_go().await.expect(200);
    }
}

/// To a handler that takes a number they are one resource.
pub(crate) async fn a_number_is_one_key_however_it_is_spelt(case: Case) {
    let (here, there) = both(&case).await;
    let spellings = ["7", "07", "+7", "%2B7"];
    // The lock of the text that the number writes itself as.
    let hold = here.hold(&pay("7")).await;
    for spelt in spellings {
        for site in [&here, &there] {
            busy(site.post(&format!("/numbers/{spelt}")).send().await);
            busy(site.post(&format!("/numbers/{spelt}/8")).send().await);
            busy(site.post(&format!("/numbers/8/{spelt}")).send().await);
        }
    }
    let _ = here.post("/numbers/8").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    let hold = here.hold("/number-of/a/7").await;
    for spelt in spellings {
        busy(there.post(&format!("/number-of/a/{spelt}")).send().await);
        let _ = there.post(&format!("/number-of/b/{spelt}")).send().await.expect(200);
    }
    let _ = hold.let_go().await.expect(200);
    for route in ["number", "number-key"] {
        for (spelt, status) in spellings.into_iter().zip([200, 200, 429, 429]) {
            let asked = here.get(&format!("/quota/{route}/{spelt}")).send().await;
            let _ = asked.expect(status);
        }
    }
    for odd in ["x", "-7", "7.0", "%207", "18446744073709551616"] {
        for route in ["numbers", "numbers/7", "number-of/a", "quota/number"] {
            let _ = here.post(&format!("/{route}/{odd}")).send().await.expect(400).problem();
        }
    }
}

pub(crate) async fn bytes_that_are_no_text_are_refused(case: Case) {
    let (here, there) = both(&case).await;
    for value in ["%ff", "a%C3", "%C3%28", "%ED%A0%80"] {
        for site in [&here, &there] {
            let _ = site.post(&pay(value)).send().await.expect(400).problem();
        }
    }
    let _ = here.get("/quota/param/%ff").send().await.expect(400).problem();
    assert_eq!(case.desk.ran().len(), 0);
}

pub(crate) async fn the_handler_sees_the_same_value_in_both_frameworks(case: Case) {
    let (here, there) = both(&case).await;
    for (sent, seen) in [
        ("a%2Fb", "a/b"),
        ("%00", "\0"),
        ("a%20b", "a b"),
        ("a+b", "a+b"),
        ("%C3%A4", "ä"),
        ("a%25b", "a%b"),
    ] {
        for site in [&here, &there] {
            let answer = site.post(&pay(sent)).send().await.expect(200);
            assert_eq!(answer.json()["id"], seen, "{answer:?}");
        }
    }
}

/// Routers disagree whether nothing is a value: a value like others in axum, no match in actix-web.
pub(crate) async fn an_empty_value_is_no_way_around(case: Case) {
    let site = case.site().await;
    let answer = site.post("/orders//pay").send().await;
    match case.framework {
        Framework::Actix => {
            let _ = answer.expect(404);
            assert_eq!(case.desk.ran().len(), 0);
        }
        Framework::Axum => {
            let _ = fence(&answer.expect(200));
            let hold = site.hold("/orders//pay").await;
            busy(site.post("/orders//pay").send().await);
            let _ = hold.let_go().await.expect(200);
        }
    }
}
