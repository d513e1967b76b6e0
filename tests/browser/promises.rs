//! Promises of the page's buttons.

use lockgate_tests::{DemoProcess, shared_server};
use serde_json::json;

use crate::demo_page::{DemoPage, ORDER};

/// First step of the tour, and the smoke test.
pub(crate) async fn second_payment_is_refused(page: &DemoPage) {
    take_tour_step(page, "refuse").await;
    page.wait_for_zone("passed", 1).await;
    page.wait_for_zone("refused", 1).await;
    let responses = page.responses().await;
    let refused = responses.iter().find(|row| row.status == "409").expect("a 409");
    assert!(refused.retry_after.parse::<u64>().is_ok(), "{responses:?}");
    // A second run would be counted.
    page.wait_for_text("#proof", "1 run").await;
}

pub(crate) async fn tour_refuses_waits_defers_crashes_and_redrives(page: &DemoPage) {
    second_payment_is_refused(page).await;
    assert_eq!(
        page.evaluate("'empty' in document.querySelector('#tour-redrive').dataset").await,
        true
    );

    take_tour_step(page, "wait").await;
    page.wait_for_zone("passed", 4).await;
    page.wait_for_responses(&format!("POST /orders/{ORDER}/ship"), "200", 2).await;

    take_tour_step(page, "defer").await;
    page.wait_for_job("done").await;
    page.wait_for_responses(&format!("POST /orders/{ORDER}/refund"), "202", 1).await;
    page.wait_for_responses(&format!("refund of {ORDER}, deferred run"), "200", 1).await;

    take_tour_step(page, "crash").await;
    page.wait_for_job("dead").await;
    page.wait_for_zone("dead", 1).await;
    assert!(page.text("#tour-says").await.contains("panicked"));

    take_tour_step(page, "redrive").await;
    page.wait_for_zone("dead", 0).await;
    page.wait_for_responses(&format!("redrive refund of {ORDER}"), "202", 1).await;
    page.wait_for_responses(&format!("refund of {ORDER}, deferred run"), "200", 2).await;
    page.wait_until("runs that never overlap", "document.querySelector('#proof.good')").await;
    assert!(page.text("#proof").await.contains("never two at once"));
}

/// Clicks a step, and waits until the page says that it was as promised.
async fn take_tour_step(page: &DemoPage, name: &str) {
    let step = format!("document.querySelector('#tour-{name}')");
    let is_enabled = format!("{step}.getAttribute('aria-disabled') === 'false'");
    page.wait_until(&format!("the step {name}"), &is_enabled).await;
    page.click(&format!("#tour-{name}")).await;
    let has_ended = format!("{step}.dataset.done !== undefined && {is_enabled}");
    // Without a dead letter, the last step is disabled again.
    let has_ended = format!("{has_ended} || {step}.dataset.done === 'true'");
    page.wait_until(&format!("the end of the step {name}"), &has_ended).await;
    let seen = page.text("#tour-says").await;
    assert_eq!(page.evaluate(&format!("{step}.dataset.done")).await, "true", "{name}: {seen}");
}

pub(crate) async fn operations_answer_as_their_buttons_say(page: &DemoPage) {
    page.enter("#ms", "300").await;
    for op in ["pay", "ship", "refund"] {
        page.click(&format!("#{op}")).await;
        page.wait_for_responses(&format!("POST /orders/{ORDER}/{op}?ms=300"), "200", 1).await;
    }

    // "Pay, pay, ship and refund: 200, 409, wait, 202".
    page.enter("#ms", "1500").await;
    page.click("#all").await;
    for (op, status) in [("pay", "200"), ("pay", "409"), ("ship", "200"), ("refund", "202")] {
        page.wait_for_responses(&format!("POST /orders/{ORDER}/{op}?ms=1500"), status, 1).await;
    }
    page.wait_for_responses(&format!("refund of {ORDER}, deferred run"), "200", 1).await;

    // Three at once, of which one gets the lock.
    page.enter("#ms", "1600").await;
    page.click("#many option:nth-of-type(3)").await;
    page.click("#pay").await;
    let payments = format!("POST /orders/{ORDER}/pay?ms=1600");
    page.wait_for_responses(&payments, "200", 1).await;
    page.wait_for_responses(&payments, "409", 2).await;
    let responses = page.responses().await;
    let refused = responses.iter().find(|row| row.status == "409").expect("a 409");
    assert_eq!(refused.count, 2, "equal rows fold: {responses:?}");

    page.enter("#id", "8").await;
    page.wait_for_text("#whose", "8").await;
    page.wait_for_text("#proof", "no runs yet").await;
}

pub(crate) async fn failing_handlers_are_shown_once(page: &DemoPage) {
    page.click("#form summary").await;
    page.enter("#note", "too late").await;
    page.click("#refund").await;
    page.wait_for_responses(&format!("POST /orders/{ORDER}/refund"), "200", 1).await;
    let responses = page.responses().await;
    assert!(responses[0].body.contains("note “too late”"), "{responses:?}");

    page.enter("#ms", "700").await;
    page.click("#fail option[value='status=500']").await;
    page.click("#pay").await;
    page.wait_for_responses(&format!("POST /orders/{ORDER}/pay?status=500"), "500", 1).await;

    page.click("#fail option[value='panic=1']").await;
    page.click("#pay").await;
    let panicking = format!("POST /orders/{ORDER}/pay?panic=1");
    page.wait_for_responses(&panicking, "500", 1).await;
    page.wait_for_zone("running", 0).await;
    // Chromium repeats a POST whose connection was closed. The request after it would come later.
    page.click("#fail option[value='']").await;
    page.click("#ship").await;
    page.wait_for_responses(&format!("POST /orders/{ORDER}/ship"), "200", 1).await;
    let responses = page.responses().await;
    let panics = responses.iter().filter(|row| row.request.starts_with(&panicking));
    assert_eq!(panics.map(|row| row.count).sum::<u64>(), 1, "{responses:?}");
    let log = page.demo.stderr_lines();
    let panics = log.iter().filter(|line| line.trim() == "asked to panic").count();
    assert_eq!(panics, 1, "{log:#?}");
}

pub(crate) async fn deferred_requests_are_cancelled_redriven_and_cleared(page: &DemoPage) {
    page.enter("#ms", "8000").await;
    page.click("#pay").await;
    page.wait_for_zone("running", 1).await;
    page.enter("#ms", "300").await;
    for count in 1..=2 {
        page.click("#refund").await;
        let queued = "document.querySelectorAll('#jobs li[data-job=queued]').length";
        page.wait_until("queued refunds", &format!("{queued} === {count}")).await;
    }
    page.wait_for_zone("deferred", 2).await;
    page.click("#jobs li:last-child button").await;
    page.wait_for_job("cancelled").await;

    // It panics in its first run only.
    page.click("#form summary").await;
    page.click("#fail option[value='fails=1']").await;
    page.click("#refund").await;
    page.wait_for_job("done").await;
    page.wait_for_job("dead").await;
    page.wait_for_zone("dead", 1).await;
    page.click("#tidy").await;
    let entries = "document.querySelectorAll('#jobs li').length";
    page.wait_until("the dead letter to stay alone", &format!("{entries} === 1")).await;

    // It is in the store, so a new page lists it too.
    page.open_page_of(&page.demo).await;
    page.wait_for_job("dead").await;
    page.click("#jobs li[data-job=dead] button").await;
    page.wait_for_job("done").await;
    page.wait_for_zone("dead", 0).await;
    page.wait_for_responses(&format!("redrive refund of {ORDER}"), "202", 1).await;
    page.click("#tidy").await;
    page.wait_until("an empty list", &format!("{entries} === 0")).await;
    let is_hidden = page.evaluate("document.querySelector('#jobs-empty').hidden").await;
    assert_eq!(is_hidden, false, "the empty list says so");
}

pub(crate) async fn quota_buttons_spend_the_quota(page: &DemoPage) {
    // In a window that does not end before the burst.
    for sent in 1.. {
        page.click("#once").await;
        page.wait_for_responses("GET /limited", "200", sent).await;
        let refill = page.text("#refill").await;
        let seconds = refill.split(' ').find_map(|word| word.parse::<u64>().ok());
        if seconds >= Some(4) {
            break;
        }
        page.wait_for_text("#refill", "").await;
    }
    assert_eq!(page.text("#left").await, "9 of 10 left");
    page.click("#clear").await;
    page.click("#burst").await;
    page.wait_for_responses("GET /limited", "200", 9).await;
    page.wait_for_responses("GET /limited", "429", 3).await;
    page.wait_for_text("#left", "0 of 10 left").await;
    let meter = page.evaluate("document.querySelectorAll('#meter i.left').length").await;
    assert_eq!(meter, 0);
    let responses = page.responses().await;
    let refused = responses.iter().find(|row| row.status == "429").expect("a 429");
    assert!(refused.retry_after.parse::<u64>().is_ok(), "{responses:?}");
    page.click("#clear").await;
    assert!(page.responses().await.is_empty());
}

pub(crate) async fn code_can_be_unfolded_and_copied(page: &DemoPage) {
    for (css, at) in mark_each(page, "summary").await {
        let is_open = format!("document.querySelector({css:?}).parentNode.open");
        let was_open = page.evaluate(&is_open).await;
        page.click(&css).await;
        page.wait_until(&format!("summary {at}"), &format!("{is_open} !== {was_open}")).await;
    }
    let copy_buttons = mark_each(page, ".copy button").await;
    assert_eq!(copy_buttons.len(), 6, "one for each line of curl-lines.txt");
    for (css, _) in copy_buttons {
        page.click(&css).await;
        page.wait_for_text(&css, "Copied").await;
    }
    // The page shows the lines that the demo prints.
    let shown = page
        .evaluate("[...document.querySelectorAll('pre.curl')].map((one) => one.textContent)")
        .await;
    let printed = page.demo.stdout_lines();
    let printed: Vec<_> = printed.iter().skip(1).map(|line| line.trim()).collect();
    assert_eq!(shown, json!(printed));
}

/// Marks each element, and returns a selector for each, with its number.
async fn mark_each(page: &DemoPage, css: &str) -> Vec<(String, u64)> {
    let mark = "forEach((one, at) => one.setAttribute('data-marked', at))";
    let elements = format!("document.querySelectorAll({css:?})");
    page.evaluate(&format!("{elements}.{mark}")).await;
    let count = page.evaluate(&format!("{elements}.length")).await.as_u64().expect("a number");
    (0..count).map(|at| (format!("{css}[data-marked='{at}']"), at)).collect()
}

/// The demo of the other framework on the same Redis.
pub(crate) async fn second_process_has_a_lane(page: &DemoPage) {
    let namespace = uuid::Uuid::new_v4().simple().to_string();
    let store = shared_server().await.url(&namespace);
    let first = DemoProcess::start(page.framework, &store).await;
    let second = DemoProcess::start(page.framework.other(), &store).await;
    page.open_page_of(&first).await;
    page.click("details:has(#peer) > summary").await;
    // At once: while it is typed, its first digits are the ports of others.
    let port = second.addr.port();
    page.evaluate(&format!("document.querySelector('#peer').value = '{port}'")).await;
    let payment = second.post(&format!("/orders/{ORDER}/pay?ms=6000")).spawn();
    page.wait_for_text("#holder", &format!("pay, process {}", second.pid())).await;
    page.wait_until("a dot", "document.querySelector('.dot.foreign')").await;
    let bar = format!("document.querySelector('[data-pid=\"{}\"] .bar')", second.pid());
    page.wait_until("a lane of the second process", &bar).await;
    let own_lane = format!("document.querySelector('[data-pid=\"{}\"]')", first.pid());
    page.wait_until("a lane of the first process", &own_lane).await;
    page.click("#pay").await;
    page.wait_for_responses(&format!("POST /orders/{ORDER}/pay"), "409", 1).await;
    let _ = payment.response().await.expect_status(200);
    page.wait_for_text("#holder", "the lock is free").await;
}

pub(crate) async fn page_fits_a_phone(page: &DemoPage) {
    assert_eq!(page.evaluate("innerWidth").await, 390);
    check_frames(page).await;
}

pub(crate) async fn page_fits_a_desktop(page: &DemoPage) {
    check_frames(page).await;
}

/// One short run among long ones: a bar was once wider than the page.
async fn check_frames(page: &DemoPage) {
    for (at, ms) in ["1500", "100", "1500", "1500"].into_iter().enumerate() {
        page.enter("#ms", ms).await;
        page.click("#pay").await;
        let runs = format!("document.querySelectorAll('#runs tbody tr').length === {}", at + 1);
        page.wait_until(&format!("run {at}"), &runs).await;
    }
    let outside = "[...document.querySelectorAll('.track')].flatMap((track) => {
        const frame = track.getBoundingClientRect();
        return [...track.querySelectorAll('.bar, .wait, .gap')]
            .map((bar) => bar.getBoundingClientRect())
            .filter((bar) => bar.left < frame.left - 1 || bar.right > frame.right + 1);
    }).length";
    assert_eq!(page.evaluate(outside).await, 0, "bars outside of the frame");
    let bars = page.evaluate("document.querySelectorAll('.bar').length").await;
    assert!(bars.as_u64() > Some(2), "{bars}");
    let width = page.evaluate("document.documentElement.scrollWidth - innerWidth").await;
    assert!(width.as_i64().is_some_and(|more| more <= 0), "{width} px are outside of the page");
}
