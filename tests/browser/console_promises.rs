//! Promises of the operators' console.

use fantoccini::key::Key;
use lockgate_tests::eventually;

use crate::{
    console_page::{ConsolePage, PAGES, REASON},
    demo_page::DemoPage,
};

/// The smoke test.
pub(crate) async fn waiting_request_is_counted(page: &DemoPage) {
    let console = ConsolePage::open(page).await;
    console.wait_for_card("Store", "available").await;
    console.act("Pause deferred requests").await;
    // While it is paused, the request waits for longer than the run that it was deferred behind.
    let (id, running) = console.defer_refund("", "").await;
    console.wait_for_card("Deferred requests", "1").await;
    let _ = running.response().await.expect_status(200);
    console.act("Resume deferred requests").await;
    console.wait_for_state(&id, "done").await;
    console.wait_for_card("Deferred requests", "0").await;
}

pub(crate) async fn dead_request_is_redriven_and_audited(page: &DemoPage) {
    let console = ConsolePage::open(page).await;
    // It fails in its first run only.
    let (id, _running) = console.defer_refund("fails=1", "").await;
    console.wait_for_state(&id, "dead").await;
    console.wait_for_card("Dead letters", "1").await;

    console.go_to("jobs?state=dead").await;
    console.wait_for("panicked").await;
    page.click("main td a").await;
    console.wait_for(&id).await;
    console.act("Redrive").await;
    page.wait_for_text("#notice", "The request waits to run again.").await;
    console.wait_for_state(&id, "done").await;

    console.go_to("audit").await;
    console.wait_for(REASON).await;
    let rows = page.evaluate("document.querySelectorAll('main tbody tr').length").await;
    assert_eq!(rows, 1, "one action, one record");
    let record = page.text("main tbody tr").await;
    for part in ["local", "redrive", &id] {
        assert!(record.contains(part), "{part} in {record}");
    }
}

pub(crate) async fn deferred_requests_are_paused_and_resumed(page: &DemoPage) {
    let console = ConsolePage::open(page).await;
    console.act("Pause deferred requests").await;
    page.wait_for_text("#notice", "Deferred requests are paused.").await;
    console.wait_for("paused").await;
    let (id, _running) = console.defer_refund("", "").await;
    console.wait_for_card("Deferred requests", "1").await;
    console.go_to("jobs").await;
    console.wait_for(&id[..10]).await;

    console.go_to("overview").await;
    console.act("Resume deferred requests").await;
    page.wait_for_text("#notice", "Deferred requests are resumed.").await;
    console.wait_for_state(&id, "done").await;

    console.go_to("audit").await;
    console.wait_for(REASON).await;
    let rows = page.evaluate("document.querySelectorAll('main tbody tr').length").await;
    assert_eq!(rows, 2, "each action has a record");
}

pub(crate) async fn process_is_drained_and_resumed(page: &DemoPage) {
    let console = ConsolePage::open(page).await;
    console.go_to("fleet").await;
    console.act("Drain").await;
    page.wait_for_text("#notice", "The process is drained: its workers start nothing more.").await;
    console.wait_for("draining").await;
    // The process goes on to serve and to store what it defers.
    let (id, running) = console.defer_refund("", "").await;
    let _ = running.response().await.expect_status(200);
    console.go_to("overview").await;
    console.wait_for_card("Deferred requests", "1").await;

    console.go_to("fleet").await;
    console.act("Resume").await;
    page.wait_for_text("#notice", "The workers of the process start work again.").await;
    console.wait_for_state(&id, "done").await;
}

pub(crate) async fn refused_client_is_found_and_has_its_quota_back(page: &DemoPage) {
    let request = async || page.demo.get("/limited").send().await.status;
    let console = ConsolePage::open(page).await;
    console.go_to("limits").await;
    // Some of them arrive in one window.
    for _ in 0..25 {
        request().await;
    }
    console.wait_for("10 per 10s").await;
    console.wait_for("client address").await;
    page.wait_until("the refused client", "document.querySelector('main td svg')").await;
    let line = "document.querySelector('.legend li')?.textContent.startsWith('limited: ')
        && document.querySelector('svg[aria-label*=\"limited: \"] .line-0').getBoundingClientRect().height > 1";
    page.wait_until("the refusals of the policy", line).await;
    let width = page.evaluate("document.documentElement.scrollWidth - innerWidth").await;
    assert!(width.as_i64().is_some_and(|more| more <= 0), "{width} px outside");
    page.wait_until("the link", "document.querySelector('main a[href*=subject]')").await;
    page.evaluate("document.querySelector('main a[href*=subject]').click()").await;
    console.wait_for("127.0.0.1 under limited").await;
    console.wait_for("of 10 per 10s left under limited").await;

    console.act("Block").await;
    console.wait_for("left under limited, blocked for").await;
    eventually("the block to apply in the process", async || request().await == 429).await;
    console.act("Reset").await;
    page.wait_for_text("#notice", "127.0.0.1 has its whole quota again.").await;
    eventually("the client to be admitted", async || request().await == 200).await;
    console.click_button("Refresh").await;
    let is_blocked = "document.querySelector('main').innerText.includes('blocked for')";
    page.wait_until("no block", &format!("!{is_blocked}")).await;

    console.go_to("limits?policy=limited").await;
    console.act_with("Change the policy", &[("quota", "7 per 1h burst 3")]).await;
    console.wait_for("7 per 3600s burst 3").await;
    console.wait_for("in 1 of 1 processes").await;
    console.act("As deployed").await;
    page.wait_for_text("#notice", "limited is as deployed.").await;
}

pub(crate) async fn payload_is_shown_as_text(page: &DemoPage) {
    const MARKUP: &str = "<img src=x onerror=\"window.hasRun = true\">";
    let console = ConsolePage::open(page).await;
    let (id, _running) = console.defer_refund("panic=1", MARKUP).await;
    console.wait_for_state(&id, "dead").await;
    console.go_to(&format!("jobs?id={id}")).await;
    console.click_button("Show its request").await;
    page.wait_until("the request", "document.querySelector('main pre')").await;
    let shown = page.text("main pre").await;
    assert!(shown.contains(MARKUP), "{shown}");

    // A name from the address is shown too, and may come from a link of another page.
    console
        .go_to("queues?name=%3Cimg%20src%3Dx%20onerror%3D%22window.hasRun%20%3D%20true%22%3E")
        .await;
    console.wait_for("<img src=x").await;
    let images = page.evaluate("document.images.length").await;
    assert_eq!(images, 0, "no markup becomes an element");
    assert_eq!(page.evaluate("'hasRun' in window").await, false);
}

pub(crate) async fn keyboard_reaches_the_navigation_and_leaves_the_dialog(page: &DemoPage) {
    let console = ConsolePage::open(page).await;
    let focus = "document.activeElement.textContent";
    for name in ["Skip to the page", "Overview", "Locks"] {
        page.press(Key::Tab).await;
        assert_eq!(page.evaluate(focus).await, name);
    }
    page.press(Key::Enter).await;
    page.wait_until("the locks", "location.hash === '#locks'").await;
    page.wait_until("the focus in the page", "document.activeElement.id === 'page'").await;

    console.go_to("overview").await;
    page.press(Key::Tab).await;
    page.wait_until("the button", &format!("{focus} === 'Pause deferred requests'")).await;
    // A snapshot replaces the button, and the focus stays.
    page.evaluate("(window.shown = document.activeElement, true)").await;
    page.wait_until("a snapshot", "!window.shown.isConnected").await;
    assert_eq!(page.evaluate(focus).await, "Pause deferred requests");
    page.press(Key::Enter).await;
    page.wait_until("the dialog", "document.querySelector('#dialog').open").await;
    page.enter("#dialog [name=reason]", REASON).await;
    page.press(Key::Escape).await;
    page.wait_until("no dialog", "!document.querySelector('#dialog').open").await;

    console.go_to("audit").await;
    console.wait_for("No action is recorded.").await;
}

pub(crate) async fn console_fits_a_phone(page: &DemoPage) {
    assert_eq!(page.evaluate("innerWidth").await, 390);
    check_widths(page).await;
}

pub(crate) async fn console_fits_a_desktop(page: &DemoPage) {
    check_widths(page).await;
}

/// Long names scroll in their table, and not with the page.
async fn check_widths(page: &DemoPage) {
    let console = ConsolePage::open(page).await;
    let (id, _running) = console.defer_refund("panic=1", "").await;
    let pages = PAGES.map(str::to_owned);
    let one_request = format!("jobs?id={id}");
    for fragment in pages.into_iter().chain([one_request]) {
        console.go_to(&fragment).await;
        page.wait_until("a heading", "document.querySelector('main h2')").await;
        let width = page.evaluate("document.documentElement.scrollWidth - innerWidth").await;
        assert!(width.as_i64().is_some_and(|more| more <= 0), "{fragment}: {width} px outside");
    }
}
