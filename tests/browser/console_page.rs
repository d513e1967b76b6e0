//! `ConsolePage`: the operators' console of a running demo in a browser.

use lockgate_tests::{PendingResponse, eventually};

use crate::demo_page::{DemoPage, ORDER};

/// Fragments of the pages.
pub(crate) const PAGES: [&str; 8] =
    ["overview", "locks", "limits", "jobs", "queues", "fleet", "check", "audit"];

/// Reason of every action.
pub(crate) const REASON: &str = "asked by support";

/// The console, in the browser of the demo's page.
pub(crate) struct ConsolePage<'a> {
    pub(crate) page: &'a DemoPage,
}

impl<'a> ConsolePage<'a> {
    /// Opens the overview, without the slash at its end, which the console adds.
    pub(crate) async fn open(page: &'a DemoPage) -> Self {
        page.go_to("/ops").await;
        page.wait_for_text("#live", "live").await;
        page.wait_until("the cards", "document.querySelector('.card')").await;
        Self { page }
    }

    /// Opens the page at this fragment.
    pub(crate) async fn go_to(&self, fragment: &str) {
        self.page.go_to(&format!("/ops/#{fragment}")).await;
        let name = fragment.split_once('?').map_or(fragment, |(name, _)| name);
        let current = format!("document.querySelector('nav a[href=\"#{name}\"][aria-current]')");
        self.page.wait_until(fragment, &current).await;
    }

    /// Waits for this text somewhere in the page.
    pub(crate) async fn wait_for(&self, text: &str) {
        let is_shown = format!("document.querySelector('main').innerText.includes({text:?})");
        self.page.wait_until(text, &is_shown).await;
    }

    /// Waits for the number of a card.
    pub(crate) async fn wait_for_card(&self, label: &str, text: &str) {
        let number = format!(
            "[...document.querySelectorAll('.card')].some((card) =>
                card.querySelector('dt').textContent === {label:?}
                && card.querySelector('dd').textContent.startsWith({text:?}))"
        );
        self.page.wait_until(&format!("{text} {label}"), &number).await;
    }

    /// Clicks the button with this label. A snapshot may replace it between two calls of the
    /// driver, so the page itself clicks.
    pub(crate) async fn click_button(&self, label: &str) {
        let button = format!(
            "[...document.querySelectorAll('main button')]
                .find((button) => button.textContent === {label:?})"
        );
        self.page.wait_until(&format!("the button {label}"), &button).await;
        self.page.evaluate(&format!("{button}.click()")).await;
    }

    /// Performs an action that needs a reason only.
    pub(crate) async fn act(&self, label: &str) {
        self.act_with(label, &[]).await;
    }

    /// Performs an action with these values and the reason.
    pub(crate) async fn act_with(&self, label: &str, values: &[(&str, &str)]) {
        self.fill(label, values).await;
        self.confirm().await;
    }

    /// Opens the dialog of an action, and enters the values and the reason.
    pub(crate) async fn fill(&self, label: &str, values: &[(&str, &str)]) {
        self.click_button(label).await;
        self.page.wait_until("the dialog", "document.querySelector('#dialog').open").await;
        for (name, value) in values.iter().chain([&("reason", REASON)]) {
            self.page.enter(&format!("#dialog [name={name}]"), value).await;
        }
    }

    /// Confirms the open dialog.
    pub(crate) async fn confirm(&self) {
        self.page.click("#dialog-act").await;
        self.page.wait_until("no dialog", "!document.querySelector('#dialog').open").await;
    }

    /// Checks that the audit log has this action, with its reason and this text.
    pub(crate) async fn expect_record(&self, action: &str, text: &str) {
        self.go_to("audit").await;
        let record = format!(
            "[...document.querySelectorAll('main tbody tr')].map((row) => row.textContent).find(
                (row) => [{action:?}, {text:?}, {REASON:?}].every((part) => row.includes(part)))"
        );
        self.page.wait_until(&format!("the record of {action}"), &record).await;
    }

    /// Defers a refund with this query and note behind a request that runs for 1.5 s. Returns the
    /// refund's id, and the running request.
    pub(crate) async fn defer_refund(&self, query: &str, note: &str) -> (String, PendingResponse) {
        self.defer(&format!("/orders/{ORDER}/refund?ms=0&{query}"), note).await
    }

    /// Defers a request to this target like [`defer_refund`](Self::defer_refund).
    pub(crate) async fn defer(&self, target: &str, note: &str) -> (String, PendingResponse) {
        let demo = &self.page.demo;
        let running = demo.post(&format!("/orders/{ORDER}/ship?ms=1500")).spawn();
        eventually("the order to be busy", async || {
            demo.post(&format!("/orders/{ORDER}/pay?ms=0")).send().await.status == 409
        })
        .await;
        let accepted = demo.post(target).body(note.to_owned()).send().await.expect_status(202);
        (accepted.json()["id"].as_str().expect("an id").to_owned(), running)
    }

    /// Waits until a deferred request is in this state.
    pub(crate) async fn wait_for_state(&self, id: &str, state: &str) {
        eventually("the state of the request", async || {
            let status = self.page.demo.get(&format!("/deferred/{id}")).send().await;
            status.expect_status(200).json()["state"] == state
        })
        .await;
    }
}
