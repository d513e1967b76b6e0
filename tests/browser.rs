//! The page of the demos and the operators' console in Chromium, driven by WebDriver: each button
//! does what it promises.
//!
//! `chromedriver` has to be on `PATH`; `cargo xtask test` installs it (Debian: the packages
//! `chromium` and `chromium-driver`). The smoke tests are part of every run. The others are
//! ignored, because they play at human pace; `.ci/full` runs them:
//!
//! ```sh
//! cargo xtask test -- -p lockgate-tests --test browser --run-ignored all
//! ```

#[path = "browser/chromium.rs"]
mod chromium;
#[path = "browser/console_actions.rs"]
mod console_actions;
#[path = "browser/console_deferred_actions.rs"]
mod console_deferred_actions;
#[path = "browser/console_page.rs"]
mod console_page;
#[path = "browser/console_promises.rs"]
mod console_promises;
#[path = "browser/demo_page.rs"]
mod demo_page;
#[path = "browser/promises.rs"]
mod promises;
#[path = "browser/read_only_console.rs"]
mod read_only_console;

use lockgate::Store;
use lockgate_tests::{WebFramework, connect_with_long_timeout, shared_server};

use self::{
    chromium::{Viewport, is_without_browser},
    demo_page::DemoPage,
};

/// Tests of the page, each with both demos.
macro_rules! on_both_demos {
    ($check:ident of $promises:ident: $($test:ident in $viewport:ident),+ $(,)?) => {$(
        mod $test {
            use lockgate_tests::WebFramework;

            use crate::{$check, chromium::Viewport, $promises};

            #[tokio::test]
            #[ignore = "plays at human pace: .ci/full runs it"]
            async fn axum() {
                $check(WebFramework::Axum, Viewport::$viewport, $promises::$test).await;
            }

            #[tokio::test]
            #[ignore = "plays at human pace: .ci/full runs it"]
            async fn actix() {
                $check(WebFramework::Actix, Viewport::$viewport, $promises::$test).await;
            }
        }
    )+};
}

on_both_demos! { check_page of promises:
    tour_refuses_waits_defers_crashes_and_redrives in Desktop,
    operations_answer_as_their_buttons_say in Desktop,
    failing_handlers_are_shown_once in Desktop,
    deferred_requests_are_cancelled_redriven_and_cleared in Desktop,
    quota_buttons_spend_the_quota in Desktop,
    code_can_be_unfolded_and_copied in Desktop,
    second_process_has_a_lane in Desktop,
    page_fits_a_phone in Phone,
    page_fits_a_desktop in Desktop,
}

on_both_demos! { check_page of console_promises:
    dead_request_is_redriven_and_audited in Desktop,
    deferred_requests_are_paused_and_resumed in Desktop,
    process_is_drained_and_resumed in Desktop,
    refused_client_is_found_and_has_its_quota_back in Phone,
    payload_is_shown_as_text in Desktop,
    keyboard_reaches_the_navigation_and_leaves_the_dialog in Desktop,
    console_fits_a_phone in Phone,
    console_fits_a_desktop in Desktop,
}

on_both_demos! { check_page of read_only_console:
    read_only_operator_cannot_act in Desktop,
}

on_both_demos! { check_page_on_redis of console_actions:
    lock_is_released_by_force in Desktop,
    client_is_blocked_and_given_its_quota_back in Desktop,
    waiting_request_is_cancelled_and_purged in Desktop,
    payload_of_a_task_is_shown_as_text in Desktop,
    tasks_are_run_cancelled_redriven_and_purged in Desktop,
    store_is_checked_and_repaired in Desktop,
    page_of_another_origin_cannot_act in Desktop,
}

on_both_demos! { check_page_on_redis of console_deferred_actions:
    running_request_is_cancelled in Desktop,
    delayed_request_is_run_now in Desktop,
    dead_requests_are_redriven_and_purged_together in Desktop,
}

#[tokio::test]
async fn smoke() {
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        check_page(framework, Viewport::Desktop, promises::second_payment_is_refused).await;
    }
}

#[tokio::test]
async fn console_smoke() {
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        check_page(framework, Viewport::Desktop, console_promises::waiting_request_is_counted)
            .await;
    }
}

/// Runs a check on the page of a demo of its own, on the embedded store.
async fn check_page(
    framework: WebFramework,
    viewport: Viewport,
    check: impl AsyncFnOnce(&DemoPage),
) {
    check_page_of(framework, viewport, "memory", check).await;
}

/// Runs a check on the page of a demo of its own, with the demo's store in Redis.
async fn check_page_on_redis(
    framework: WebFramework,
    viewport: Viewport,
    check: impl AsyncFnOnce(&DemoPage, &Store),
) {
    let namespace = uuid::Uuid::new_v4().simple().to_string();
    let url = shared_server().await.url(&namespace);
    let store = connect_with_long_timeout(&url).await;
    check_page_of(framework, viewport, &url, async |page| check(page, &store).await).await;
}

/// Runs a check on the page of a demo, and fails if a script of a page has failed, or if its
/// content security policy was violated.
async fn check_page_of(
    framework: WebFramework,
    viewport: Viewport,
    store: &str,
    check: impl AsyncFnOnce(&DemoPage),
) {
    if is_without_browser() {
        println!("Skipped: install chromium and chromium-driver (Debian's names).");
        return;
    }
    let page = DemoPage::open(framework, viewport, store).await;
    check(&page).await;
    assert_eq!(page.script_errors().await, Vec::<String>::new(), "{framework:?}");
    page.close().await;
}
