//! Actions of the operators' console: each button does what it says, on a store in Redis that the
//! demo shares with the test.

use std::time::Duration;

use lockgate::{
    LockLoss, Store,
    queue::{Task, TaskFailure},
};
use lockgate_tests::{eventually, with_timeout};

use crate::{
    console_page::{ConsolePage, REASON},
    demo_page::DemoPage,
};

/// Delay of tasks and time of blocks that no test waits for.
const LONG: Duration = Duration::from_secs(600);

pub(crate) async fn lock_is_released_by_force(page: &DemoPage, store: &Store) {
    let console = ConsolePage::open(page).await;
    let guard = store.lock("order:7").acquire().await.expect("it is free");
    console.go_to("locks?key=order%3A7").await;
    console.wait_for(&format!("({})", std::process::id())).await;
    // The name has to be typed.
    console.fill("Release by force", &[("typed", "order:8")]).await;
    page.click("#dialog-act").await;
    assert_eq!(page.evaluate("document.querySelector('#dialog').open").await, true);
    assert_eq!(guard.loss(), None);
    page.enter("#dialog [name=typed]", "order:7").await;
    console.confirm().await;
    page.wait_for_text("#notice", "order:7 was taken from its holder.").await;
    assert_eq!(with_timeout("the loss", guard.lost()).await, LockLoss::Taken);
    console.wait_for("Nobody holds this lock.").await;
    console.expect_record("force-release", "order:7").await;
}

pub(crate) async fn client_is_blocked_and_given_its_quota_back(page: &DemoPage, _: &Store) {
    let console = ConsolePage::open(page).await;
    let wait_for_status = async |status: u16| {
        eventually("the answer to the client", async || {
            page.demo.get("/limited").send().await.status == status
        })
        .await;
    };
    // Polls must not spend the quota.
    console.go_to("limits?policy=limited").await;
    console.act_with("Change the policy", &[("quota", "1000000 per 1h")]).await;
    page.wait_for_text("#notice", "limited is changed in all processes.").await;
    wait_for_status(200).await;
    console.go_to("limits?policy=limited&subject=127.0.0.1").await;
    console.act_with("Block", &[("seconds", "600")]).await;
    page.wait_for_text("#notice", "127.0.0.1 is blocked for 600 s.").await;
    wait_for_status(429).await;
    console.act("Unblock").await;
    page.wait_for_text("#notice", "127.0.0.1 is no longer blocked.").await;
    wait_for_status(200).await;

    // A quota that no test can wait for is spent and given back.
    console.go_to("limits?policy=limited").await;
    console.act_with("Change the policy", &[("quota", "1 per 1h")]).await;
    wait_for_status(429).await;
    console.go_to("limits?policy=limited&subject=127.0.0.1").await;
    console.act("Reset").await;
    page.wait_for_text("#notice", "127.0.0.1 has its whole quota again.").await;
    wait_for_status(200).await;
    wait_for_status(429).await;
    console.act("As deployed").await;
    page.wait_for_text("#notice", "limited is as deployed.").await;
    wait_for_status(200).await;
    for action in ["block", "unblock", "set-policy", "reset-limit", "clear-policy"] {
        console.expect_record(action, "limited").await;
    }
}

pub(crate) async fn waiting_request_is_cancelled_and_purged(page: &DemoPage, _: &Store) {
    let console = ConsolePage::open(page).await;
    console.act("Pause deferred requests").await;
    let (id, _running) = console.defer_refund("", "").await;
    console.go_to(&format!("jobs?id={id}")).await;
    console.act("Cancel").await;
    page.wait_for_text("#notice", "The request is cancelled.").await;
    console.wait_for_state(&id, "cancelled").await;
    console.act("Purge").await;
    page.wait_for_text("#notice", "The request is deleted.").await;
    eventually("the request to be gone", async || {
        page.demo.get(&format!("/deferred/{id}")).send().await.status == 410
    })
    .await;
    for action in ["cancel-job", "purge-job"] {
        console.expect_record(action, &id).await;
    }
}

pub(crate) async fn tasks_are_run_cancelled_redriven_and_purged(page: &DemoPage, store: &Store) {
    let console = ConsolePage::open(page).await;
    let queue = store.queue::<String>("mails");
    queue.push(&"later".to_owned()).delay(LONG).await.expect("there is room");
    console.go_to("queues?name=mails&state=delayed").await;
    console.act("Run now").await;
    page.wait_for_text("#notice", "The task is due.").await;
    console.go_to("queues?name=mails&state=due").await;
    console.act("Cancel").await;
    page.wait_for_text("#notice", "The task is cancelled, unless it was done before.").await;
    console.wait_for("None.").await;
    assert_eq!(queue.stats().await.expect("it is there").waiting, 0);

    console.act("Pause").await;
    page.wait_for_text("#notice", "mails is paused.").await;
    assert!(queue.stats().await.expect("it is there").paused);
    console.act("Resume").await;
    page.wait_for_text("#notice", "mails is resumed.").await;

    let broken =
        queue.worker(async |_: Task<String>| Err::<(), _>(TaskFailure::dead_letter("<b>")));
    let worker = tokio::spawn(broken.run(std::future::pending()));
    let id = queue.push(&"broken".to_owned()).await.expect("there is room").into_id();
    let wait_for_letter = async |count: u64| {
        eventually("the dead letter", async || {
            queue.stats().await.expect("it is there").dead >= count
        })
        .await;
    };
    wait_for_letter(1).await;
    console.go_to("queues?name=mails&state=dead").await;
    console.wait_for("<b>").await;
    console.act("Redrive").await;
    page.wait_for_text("#notice", "The task waits to run again.").await;
    wait_for_letter(2).await;
    console.act_with("Redrive all", &[("pace", "100")]).await;
    wait_for_letter(3).await;
    worker.abort();
    console.go_to("queues?name=mails&state=due").await;
    console.go_to("queues?name=mails&state=dead").await;
    console.act("Purge").await;
    page.wait_for_text("#notice", "The dead letter is deleted.").await;
    assert!(queue.get(&id).await.expect("it is there").is_none());
    for action in ["run-task-now", "cancel-task", "pause-queue", "resume-queue", "purge-task"] {
        console.expect_record(action, "mails").await;
    }
}

pub(crate) async fn payload_of_a_task_is_shown_as_text(page: &DemoPage, store: &Store) {
    const MARKUP: &str = "<img src=x onerror='window.hasRun = true'>";
    let console = ConsolePage::open(page).await;
    let queue = store.queue::<String>("mails");
    queue.push(&MARKUP.to_owned()).await.expect("there is room");
    console.go_to("queues?name=mails&state=due").await;
    console.click_button("Payload").await;
    page.wait_until("the payload", "document.querySelector('main pre')").await;
    let shown = page.text("main pre").await;
    assert!(shown.contains(MARKUP), "{shown}");
    assert_eq!(page.evaluate("document.images.length").await, 0, "no markup becomes an element");
    assert_eq!(page.evaluate("'hasRun' in window").await, false);
    console.go_to("audit").await;
    for part in ["task-payload", "looked at in the console"] {
        console.wait_for(part).await;
    }
}

pub(crate) async fn store_is_checked_and_repaired(page: &DemoPage, _: &Store) {
    let console = ConsolePage::open(page).await;
    console.go_to("check").await;
    console.click_button("Check now").await;
    console.wait_for("0 faults").await;
    console.act("Check and repair").await;
    page.wait_for_text("#notice", "0 faults were repaired.").await;
    console.expect_record("repair", REASON).await;
}

/// A page of another origin can send this request, but not as one of the console's own page. As
/// JSON the browser would not send it; the tests of the demos do, with each `Sec-Fetch-Site`.
pub(crate) async fn page_of_another_origin_cannot_act(page: &DemoPage, store: &Store) {
    const ACTION: &str = r#"{"action":"pause-jobs","reason":"not the operator"}"#;
    let other = lockgate_tests::DemoProcess::start(page.framework, "memory").await;
    page.open_page_of(&other).await;
    let address = page.demo.addr;
    let request = format!(
        "fetch('http://{address}/ops/api/actions', {{ method: 'POST', mode: 'no-cors', body: {ACTION:?} }})
            .then(() => 'read', () => 'hidden')"
    );
    // `Cross-Origin-Resource-Policy` hides the refusal.
    assert_eq!(page.evaluate(&request).await, "hidden");
    assert!(!store.deferred_jobs().is_paused().await.expect("it is there"));
    let console = ConsolePage::open(page).await;
    console.go_to("audit").await;
    console.wait_for("No action is recorded.").await;
}
